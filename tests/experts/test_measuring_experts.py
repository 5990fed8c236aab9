"""Errors belong to the very network that they were measured with."""

from dataclasses import replace

import pytest

from task2vec.errors import ConflictError
from task2vec.library import Expert, Library, MeasuredError
from tests.embedding.conftest import make_task


def test_a_replaced_expert_takes_its_errors_along(tmp_path):
    task, old = make_task(), Expert("birds", "file", "/a/birds.expert", sha256="1" * 64)
    with Library.open(tmp_path) as library:
        library.add(task, old, replace(old, name="other"))
        errors = [MeasuredError(task.fingerprint, name, 0.25, "half") for name in ("birds", "other")]
        library.add(*errors)
        with pytest.raises(ConflictError, match="sha256"):
            library.add(replace(old, sha256="2" * 64))
        assert len(library.errors()) == 2
        library.add(replace(old, sha256="2" * 64), replace=True)
        assert [error.expert for error in library.errors()] == ["other"]


def test_the_same_file_elsewhere_is_the_same_expert(tmp_path):
    task, expert = make_task(), Expert("birds", "file", "birds.expert", sha256="1" * 64)
    with Library.open(tmp_path) as library:
        library.add(task, expert, MeasuredError(task.fingerprint, "birds", 0.25, "half"))
        library.add(replace(expert, location="/new/birds.expert"))
        assert [one.location for one in library.experts()] == ["/new/birds.expert"] and len(library.errors()) == 1
