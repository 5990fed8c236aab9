"""A library's index with nothing but spaces and places, and embeddings that are kept in a dictionary."""

import sqlite3
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from experiments.taxonomy_store import load_compact
from task2vec.library.schema import create_tables
from task2vec.library.search import Search
from tests.distance.material import make

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "taxonomy"
KEY = "0123456789abcdef" * 4


class Shelf:
    """What the tests of searching need of a library."""

    def __init__(self, folder: Path, *, filters: int, sketch_from: int = 2000):
        self.path, self.folder = folder / "index.sqlite", folder
        self.search = Search(folder, sketch_from=sketch_from)
        self.connection = self.connect()
        create_tables(self.connection)
        self.kept, self.loaded, self._last, self.filters = {}, [], 0, filters
        self.space = self.add_space(KEY, filters)

    def connect(self):
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def add_space(self, key, filters):
        told = (key, "net", "p", "{}", filters)
        insert = "INSERT INTO spaces(key, probe, probe_fingerprint, settings, filters) VALUES (?, ?, ?, ?, ?)"
        return self.connection.execute(insert, told).lastrowid

    @contextmanager
    def writing(self):
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise

    def add(self, embeddings, *, space=None):
        """Enters them, one transaction for all, and returns their ids."""
        ids = []
        with self.writing() as connection:
            for one in embeddings:
                self._last += 1
                ids.append(self._last)
                self.kept[self._last] = one
                self.search.enter(connection, space or self.space, ids[-1], one)
            self.search.sync()
        return ids

    def remove(self, *ids):
        with self.writing() as connection:
            for one in ids:
                self.search.leave(connection, self.space, one)
                self.kept.pop(one)

    def load(self, one):
        self.loaded.append(one)
        return self.kept[one]

    def fit(self, **options):
        with self.writing() as connection:
            self.search.fit(connection, self.space, **options)

    def nearest(self, embedding, *, search=None, **options):
        options = {"k": 3, "load": self.load, "space": self.space} | options
        return (search or self.search).nearest(self.connection, options.pop("space"), embedding, **options)

    def verify(self):
        return list(self.search.verify(self.connection, self.space, self.load))

    @property
    def rows_file(self):
        return next((self.folder / "search").glob("*.f32"))


def load_real(probe="tf_efficientnet_lite0", method="robust"):
    """The 43 real embeddings that come with the documents."""
    return load_compact(RESULTS / probe / "embeddings.safetensors").embeddings[method]


def make_clusters(tasks, filters=60, *, clusters=12, seed=0, spread=1.0, noise=0.1, own=0):
    """Tasks around some centres; `own` moves the centres into directions that other seeds do not have."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(own).normal(size=(clusters, filters))
    logs = spread * centres[rng.integers(clusters, size=tasks)] + noise * rng.normal(size=(tasks, filters))
    logs += rng.normal(size=(tasks, 1))
    return [make(np.exp(one), task=f"t{number}", prior=1e-6) for number, one in enumerate(logs)]
