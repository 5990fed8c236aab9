"""The Fisher information of every filter, from a probe, a head and images."""

from task2vec.fisher.estimate import Design as Design
from task2vec.fisher.estimate import FisherEstimate as FisherEstimate
from task2vec.fisher.estimate import Ledger as Ledger
from task2vec.fisher.estimate import closed_form as closed_form
from task2vec.fisher.estimate import smooth as smooth
from task2vec.fisher.estimate import spread_over_filters as spread_over_filters
from task2vec.fisher.estimate import weight_scales as weight_scales
from task2vec.fisher.per_sample import PerSampleFisher as PerSampleFisher
from task2vec.fisher.per_sample import check_rows as check_rows
from task2vec.fisher.sampling import draw_pairs as draw_pairs
from task2vec.fisher.sampling import enough_pairs as enough_pairs
from task2vec.fisher.sampling import pair_chances as pair_chances
from task2vec.fisher.sampling import probabilities as probabilities
from task2vec.fisher.sampling import term_vectors as term_vectors
from task2vec.fisher.variational import NoisyNetwork as NoisyNetwork
from task2vec.fisher.variational import mean_loss as mean_loss
from task2vec.fisher.variational import minimise as minimise
