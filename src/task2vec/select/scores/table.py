"""The one table of transferability scores: what each is called, what it needs and where it is from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from task2vec.select.scores.gbc import gbc
from task2vec.select.scores.hscore import h_score, h_score_shrunk
from task2vec.select.scores.knn import knn, knn5
from task2vec.select.scores.leep import leep
from task2vec.select.scores.logme import logme
from task2vec.select.scores.nce import nce
from task2vec.select.scores.nleep import nleep
from task2vec.select.scores.parc import parc
from task2vec.select.scores.transrate import transrate


@dataclass(frozen=True)
class Score:
    """A transferability score.

    Attributes:
        name: its key in `SCORES`.
        function: of features (or source probabilities) and labels, one number.
        authors: who proposed it.
        year: and when.
        needs_source: it reads the network's probabilities over its source classes instead of its features.
        is_seeded: it takes a `seed`.
        is_higher_better: true of every score here, and there for who ranks by errors as well.
    """

    name: str
    function: Callable[..., float]
    authors: str
    year: int
    needs_source: bool = False
    is_seeded: bool = False
    is_higher_better: bool = True


_ALL = (
    Score("knn", knn, "Puigcerver", 2021),
    Score("knn5", knn5, "Puigcerver", 2021),
    Score("logme", logme, "You", 2021),
    Score("leep", leep, "Nguyen", 2020, needs_source=True),
    Score("nce", nce, "Tran", 2019, needs_source=True),
    Score("nleep", nleep, "Li", 2021, is_seeded=True),
    Score("h_score", h_score, "Bao", 2019),
    Score("h_score_shrunk", h_score_shrunk, "Ibrahim", 2022),
    Score("transrate", transrate, "Huang", 2022),
    Score("gbc", gbc, "Pandy", 2022),
    Score("parc", parc, "Bolya", 2021),
)

SCORES: Mapping[str, Score] = MappingProxyType({score.name: score for score in _ALL})
