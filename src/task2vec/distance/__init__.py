"""Pairs of embeddings become numbers, and many embeddings a table of them."""

from task2vec.distance.asymmetric import asymmetric
from task2vec.distance.batches import CrossDiversity, Diversity, cross_diversity, diversity
from task2vec.distance.correction import pairwise_corrected
from task2vec.distance.domain import domain
from task2vec.distance.gaussian import jeffreys, kl
from task2vec.distance.kind import Distance, check_comparable
from task2vec.distance.logs import centred_log_euclidean, correlation, log_euclidean
from task2vec.distance.matrix import DistanceMatrix
from task2vec.distance.noise import NoisyDistance, find_floor, with_error
from task2vec.distance.pairwise import KINDS, cdist, pairwise, pairwise_from_logs
from task2vec.distance.symmetric import symmetric
from task2vec.distance.taxonomic import taxonomic, taxonomic_matrix
from task2vec.distance.transfer import transfer
from task2vec.distance.values import cosine, euclidean, jensen_shannon

__all__ = [
    "KINDS",
    "CrossDiversity",
    "Distance",
    "DistanceMatrix",
    "Diversity",
    "NoisyDistance",
    "asymmetric",
    "cdist",
    "centred_log_euclidean",
    "check_comparable",
    "correlation",
    "cosine",
    "cross_diversity",
    "diversity",
    "domain",
    "euclidean",
    "find_floor",
    "jeffreys",
    "jensen_shannon",
    "kl",
    "log_euclidean",
    "pairwise",
    "pairwise_corrected",
    "pairwise_from_logs",
    "symmetric",
    "taxonomic",
    "taxonomic_matrix",
    "transfer",
    "with_error",
]
