"""Distances between embeddings: of one pair, of all pairs of a collection, with their noise, and references."""

import inspect

# `as` makes a name public for type checkers (PEP 484); `__all__` serves the reference.
from task2vec.distance.distances import ALPHA as ALPHA
from task2vec.distance.distances import KINDS as KINDS
from task2vec.distance.distances import SCALING as SCALING
from task2vec.distance.distances import Distance as Distance
from task2vec.distance.distances import asymmetric as asymmetric
from task2vec.distance.distances import centred_log_euclidean as centred_log_euclidean
from task2vec.distance.distances import check_comparable as check_comparable
from task2vec.distance.distances import correlation as correlation
from task2vec.distance.distances import cosine as cosine
from task2vec.distance.distances import euclidean as euclidean
from task2vec.distance.distances import jeffreys as jeffreys
from task2vec.distance.distances import jensen_shannon as jensen_shannon
from task2vec.distance.distances import kl as kl
from task2vec.distance.distances import log_euclidean as log_euclidean
from task2vec.distance.distances import make_row as make_row
from task2vec.distance.distances import sign_vector as sign_vector
from task2vec.distance.distances import split_symmetric as split_symmetric
from task2vec.distance.distances import symmetric as symmetric
from task2vec.distance.distances import symmetric_from_logs as symmetric_from_logs
from task2vec.distance.distances import symmetric_to_rows as symmetric_to_rows
from task2vec.distance.diversity import FEWEST_BATCHES as FEWEST_BATCHES
from task2vec.distance.diversity import CrossDiversity as CrossDiversity
from task2vec.distance.diversity import Diversity as Diversity
from task2vec.distance.diversity import cross_diversity as cross_diversity
from task2vec.distance.diversity import diversity as diversity
from task2vec.distance.noise import NoisyDistance as NoisyDistance
from task2vec.distance.noise import find_basis as find_basis
from task2vec.distance.noise import find_floor as find_floor
from task2vec.distance.noise import with_error as with_error
from task2vec.distance.pairwise import DistanceMatrix as DistanceMatrix
from task2vec.distance.pairwise import pairwise as pairwise
from task2vec.distance.pairwise import pairwise_from_logs as pairwise_from_logs
from task2vec.distance.references import domain as domain
from task2vec.distance.references import taxonomic as taxonomic
from task2vec.distance.references import taxonomic_matrix as taxonomic_matrix
from task2vec.distance.references import transfer as transfer

__all__ = [name for name, value in globals().items() if name[0] != "_" and not inspect.ismodule(value)]  # pyright: ignore
