"""Probe, head and images become one Fisher value per filter."""

from task2vec.fisher.estimate import (
    Design,
    FisherEstimate,
    Ledger,
    closed_form,
    spread_over_filters,
    weight_scales,
)
from task2vec.fisher.per_sample import PerSampleFisher, check_rows
from task2vec.fisher.sampling import (
    Draw,
    draw_pairs,
    label_probabilities,
    mix_with_uniform,
    probabilities,
    term_shares,
    term_vectors,
)
from task2vec.fisher.variational import Minimum, NoisyNetwork, mean_loss, minimise

__all__ = [
    "Design",
    "Draw",
    "FisherEstimate",
    "Ledger",
    "Minimum",
    "NoisyNetwork",
    "PerSampleFisher",
    "check_rows",
    "closed_form",
    "draw_pairs",
    "label_probabilities",
    "mean_loss",
    "minimise",
    "mix_with_uniform",
    "probabilities",
    "spread_over_filters",
    "term_shares",
    "term_vectors",
    "weight_scales",
]
