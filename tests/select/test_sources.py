"""Evidence from a measured meta-task."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec.tasks
from task2vec.distance import symmetric
from task2vec.embedding import trivial
from task2vec.errors import UsageError
from task2vec.experts.measured import MeasuredExpert, MeasuredMetaTask, MeasuredTask
from task2vec.select.evidence import DOMAIN, SYMMETRIC, TAXONOMIC
from task2vec.select.evidence.sources import from_measured
from tests.library.making import make

PROTOCOLS = ("linear-2, train 5, logistic, usual", "linear-2, train half, logistic, usual")


def make_measured(*, has_lesson=True):
    """Three tasks of two families, five experts, and a lesson that has the name of a task."""
    rng = np.random.default_rng(0)
    families = (("birds", "taxa", "cub"), ("dogs", "taxa", "dogs"), ("hue", "labels", "cub"))
    tasks = tuple(MeasuredTask(*told, f"print {told[0]}", 100 + place, 3) for place, told in enumerate(families))
    lessons = (MeasuredTask("hue", "labels", "cub", "print of other photographs", 90, 3),) if has_lesson else ()
    experts = (
        MeasuredExpert("generic resnet34", "generic", "resnet34", parameters=7),
        MeasuredExpert("of birds", "taxon", "resnet34", "birds", "print birds"),
        MeasuredExpert("of hue", "label", "resnet34", "hue", "print of other photographs", parameters=9),
        MeasuredExpert("of dogs", "whole", "resnet34", "dogs", "print dogs"),
        MeasuredExpert("of dogs again", "whole", "resnet34", "dogs", "print dogs", is_repeat=True),
    )
    errors = rng.uniform(0.1, 0.9, size=(3, 5, 2, 3))
    shares = np.zeros((3, 5))
    shares[0, 1] = shares[1, 3] = shares[1, 4] = 1
    rows = 3 + len(lessons)
    return MeasuredMetaTask(
        "small",
        tasks,
        experts,
        PROTOCOLS,
        (0, 1, 2),
        errors,
        errors,
        errors,
        shares,
        np.zeros((3, 5), dtype=bool),
        scores={"logme": rng.normal(size=(3, 5, 2))},
        embeddings={"net robust": [make(f"e{row}", row) for row in range(rows)]},
        domains={"net": np.abs(rng.normal(size=(rows, 6)))},
        lessons=lessons,
        halves=rng.uniform(size=(3, 5, 2, 3, 2)),
    )


def take(measured, protocol="half", **how):
    return from_measured(measured, protocol, probe="net", **how)


def test_all_that_was_measured_is_there():
    measured = make_measured()
    evidence = take(measured)
    kept = [0, 1, 2, 3]  # who was trained a second time is not
    assert evidence.experts == ("generic resnet34", "of birds", "of hue", "of dogs") and evidence.generic == 0
    assert np.array_equal(evidence.errors, measured.errors[:, kept, 1])
    assert np.array_equal(evidence.is_candidate, measured.is_candidate[:, kept])
    assert np.array_equal(evidence.scores["logme"], measured.scores["logme"][:, kept, 1])
    assert np.array_equal(evidence.halves, measured.halves[:, kept, 1].mean(2))
    assert evidence.groups == ("cub", "dogs", "cub") and evidence.images.tolist() == [100, 101, 102]
    assert np.array_equal(evidence.parameters, [7, np.nan, 9, np.nan], equal_nan=True)


def test_lessons_are_found_by_fingerprint_and_never_by_name():
    measured = make_measured()
    evidence = take(measured)
    every = measured.embeddings["net robust"]
    assert evidence.lessons == (None, "birds", "hue", "dogs")
    assert evidence.lesson_groups == (None, "cub", "cub", "dogs")
    for column, row in ((1, 0), (2, 3), (3, 1)):
        wanted = [symmetric(every[task], every[row]) for task in range(3)]
        np.testing.assert_allclose(evidence.to_lessons[SYMMETRIC][:, column], wanted, atol=1e-6)
        assert np.array_equal(evidence.lesson_vectors[column], every[row].vector)
        assert np.array_equal(evidence.lesson_trivials[column], every[row].prior)
        assert evidence.simplicity[column] == pytest.approx(symmetric(every[row], trivial(every[row])))
    assert np.isnan(evidence.to_lessons[SYMMETRIC][:, 0]).all() and np.isnan(evidence.lesson_vectors[0]).all()
    assert np.isnan(evidence.simplicity[0]) and np.isnan(evidence.lesson_trivials[0]).all()
    unknown = take(make_measured(has_lesson=False))
    assert np.isnan(unknown.to_lessons[SYMMETRIC][:, 2]).all() and unknown.lessons[2] == "hue"


def test_kept_tables_of_distances_are_taken_before_embeddings():
    measured = make_measured()
    table = np.arange(16.0).reshape(4, 4)
    kept = {"distances": {"net robust": table, "other direct": table}}
    kept |= {name: {"net robust": np.arange(4.0), "other direct": np.arange(4.0)} for name in ("trivials", "norms")}
    known = replace(measured, **kept)
    evidence = take(known)
    assert np.array_equal(evidence.distances[SYMMETRIC], table[:3, :3])
    assert evidence.to_lessons[SYMMETRIC][1].tolist()[1:] == [4, 7, 5] and evidence.simplicity.tolist()[1:] == [0, 3, 1]
    other = from_measured(known, 0, probe="other", method="direct")
    assert other.vectors is None and other.lesson_trivials is None and DOMAIN not in other.distances


def test_domains_are_compared_by_their_angle():
    measured = make_measured()
    means = measured.domains["net"]
    evidence = take(measured)
    cosine = 1 - means[0] @ means[3] / np.linalg.norm(means[0]) / np.linalg.norm(means[3])
    assert evidence.to_lessons[DOMAIN][0, 2] == pytest.approx(cosine)
    assert evidence.distances[DOMAIN][1, 1] == 0


def test_taxa_of_birds_have_a_place_in_their_tree():
    measured = make_measured()
    assert TAXONOMIC not in take(measured).distances
    names = ("cub_Parulidae", "cub_Corvidae", "cub_Piciformes")
    with Path(task2vec.tasks.__file__).with_name("cub200_taxonomy.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = {name: sum(name[4:] in (row["order"], row["family"]) for row in rows) for name in names}
    birds = [replace(task, name=name, dataset="cub200") for task, name in zip(measured.tasks, names, strict=True)]
    known = replace(measured, tasks=tuple(replace(task, classes=counts[task.name]) for task in birds))
    evidence = take(known)
    assert evidence.distances[TAXONOMIC].tolist() == [[0, 4, 6], [4, 0, 6], [6, 6, 0]]
    assert evidence.to_lessons[TAXONOMIC][2, [1, 3]].tolist() == [6, 6]
    assert np.isnan(evidence.to_lessons[TAXONOMIC][:, [0, 2]]).all()
    fewer = replace(known, tasks=tuple(replace(task, classes=3) for task in birds))
    assert TAXONOMIC not in take(fewer).distances


def test_a_family_keeps_lessons_of_the_others():
    evidence = take(make_measured(), family="labels")
    assert evidence.tasks == ("hue",) and np.isfinite(evidence.to_lessons[SYMMETRIC][0, 1:]).all()


def test_a_protocol_is_named_in_full_by_its_size_or_by_its_number():
    measured = make_measured()
    for name in (PROTOCOLS[0], "5", 0, -2):
        assert np.array_equal(take(measured, name).errors, measured.errors[:, :4, 0])
    for wrong in ("all", 2, "linear-2"):
        with pytest.raises(UsageError, match="train half"):
            take(measured, wrong)


def test_unknown_probes_and_families_are_refused_with_those_that_are_there():
    measured = make_measured()
    with pytest.raises(UsageError, match="Choose one of: net robust"):
        from_measured(measured, probe="resnet50")
    with pytest.raises(UsageError, match="Choose one of: taxa, labels"):
        take(measured, family="fish")
