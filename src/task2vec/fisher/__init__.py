"""Probe, head and images become one Fisher value per filter."""

from task2vec.fisher.estimate import Design, FisherEstimate, Ledger, closed_form, spread_over_filters, weight_scales
from task2vec.fisher.per_sample import PerSampleFisher, check_rows
from task2vec.fisher.sampling import draw_pairs, pair_chances, probabilities, term_vectors
from task2vec.fisher.variational import NoisyNetwork, mean_loss, minimise

__all__ = [
    "Design",
    "FisherEstimate",
    "Ledger",
    "NoisyNetwork",
    "PerSampleFisher",
    "check_rows",
    "closed_form",
    "draw_pairs",
    "mean_loss",
    "minimise",
    "pair_chances",
    "probabilities",
    "spread_over_filters",
    "term_vectors",
    "weight_scales",
]
