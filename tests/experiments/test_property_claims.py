"""Claims from rows that were made up: each of them can be borne out, and each can be refuted."""

import csv
from copy import deepcopy

import numpy as np
import pytest

from experiments.outcome import write_rows
from experiments.properties import ALL_BUT_ONE, SHUFFLED, TRUE
from experiments.property_claims import correlate, find_falls, is_learnable, make_claims, summarise
from experiments.property_figures import draw_norm_error, draw_sample_size, write_properties


def make_row(**facts):
    nothing = {"images": 100, "classes": 5, "error": 0.2, "chance": 0.8, "l2": 0.1, "norm": 1.0, "distance": 0.5}
    return {**nothing, "prior_share": 0.3, "relative_error": 0.1, **facts}


def vary(repeat):
    """What random subsets would differ by."""
    return 0.01 * (repeat - 1)


@pytest.fixture
def rows():
    """The world as the paper has it."""
    sizes, kinds = (1, 2, 5), {TRUE: 1.0, SHUFFLED: 0.01, ALL_BUT_ONE: 0.02}
    return {
        "norm_error": [
            make_row(dataset=f"set_{i % 2}", task=f"task {i}", norm=10.0**i, error=0.05 * i) for i in range(12)
        ],
        "relabelled": [{"task": "t", "filters": 9, "filters_changed": 0, "largest_difference": 0.0,
                        "largest_relative_difference": 0.0}],
        "labels": [
            make_row(task=task, shuffled=share, repeat=r, distance=0.6 * (1 - share) + abs(vary(r)), norm=2 - share)
            for task in ("a", "_b$")
            for share in (0.0, 0.5, 1.0)
            for r in range(3 if share else 1)
        ],
        "classes": [
            make_row(task="a", images_per_class=9, repeat=r, classes=c, error=c / 20 + vary(r), norm=c + vary(r))
            for c in (2, 3, 5)
            for r in range(3)
        ],
        "sample_size": [
            make_row(task=task, labels=kind, images_per_class=n, repeat=r, distance=factor * (n / 10) ** 2 + 0.001 * r)
            for task in ("a", "_b$")
            for kind, factor in kinds.items()
            for n in sizes
            for r in range(3)
            if kind == TRUE or task == "a"
        ],
    }  # fmt: skip


def verdicts(rows):
    return {claim.claim: claim.verdict for claim in make_claims(rows)}


def test_all_claims_hold_in_the_papers_world(rows):
    assert set(verdicts(rows).values()) == {"holds"}
    assert len(verdicts(rows)) == 9


def test_claims_fit_a_page(rows):
    for claim in make_claims(rows):
        assert len(claim.claim) <= 31
        assert len(claim.measured) <= 36


def turn_norms(rows):
    for row in rows["norm_error"]:
        row["norm"] = 1 / row["norm"]


def mix_norms(rows):
    for row, norm in zip(rows["norm_error"], np.random.default_rng(0).permutation(12), strict=True):
        row["norm"] = 1.0 + norm


def move_filters(rows):
    rows["relabelled"][0] |= {"filters_changed": 2, "largest_relative_difference": 0.5}


def round_filters(rows):
    rows["relabelled"][0] |= {"filters_changed": 2, "largest_relative_difference": 1e-5}


def keep_shuffled_far(rows):
    for row in rows["labels"]:
        row["distance"] = 0.6 + vary(row["repeat"])


def keep_shuffled_midway(rows):
    for row in rows["labels"]:
        row["distance"] = 0.6 - 0.3 * row["shuffled"] + vary(row["repeat"])


def harden_few_classes(rows):
    for row in rows["classes"]:
        row["error"] = 1 / row["classes"]


def drop_in_the_middle(rows):
    for row in rows["sample_size"]:
        if row["images_per_class"] == 2:
            row["distance"] = 0.001 + 0.0001 * row["repeat"]


def level_sizes(rows):
    for row in rows["sample_size"]:
        row["distance"] = 0.5 + vary(row["repeat"]) * (-1) ** row["images_per_class"]


def empty_labels_far(rows):
    for row in rows["sample_size"]:
        if row["labels"] == SHUFFLED:
            row["distance"] = 0.9


def keep_one_size(rows):
    rows["sample_size"] = [row for row in rows["sample_size"] if row["images_per_class"] == 1]


@pytest.mark.parametrize(
    ("spoil", "claim", "verdict"),
    [
        (turn_norms, "the norm ranks tasks by error", "fails"),
        (mix_norms, "the norm ranks tasks by error", "unclear"),
        (move_filters, "names and order change no bit", "fails"),
        (round_filters, "names and order change no bit", "partly"),
        (keep_shuffled_far, "shuffled labels are trivial", "fails"),
        (keep_shuffled_midway, "shuffled labels are trivial", "partly"),
        (harden_few_classes, "more classes, more error", "fails"),
        (drop_in_the_middle, "fewer images, nearer to trivial", "fails"),
        (level_sizes, "fewer images, nearer to trivial", "unclear"),
        (level_sizes, "1 image per class is trivial", "fails"),
        (keep_one_size, "fewer images, nearer to trivial", "unclear"),
        (keep_one_size, "1 image per class is trivial", "unclear"),
        (empty_labels_far, "few empty labels are trivial", "fails"),
    ],
)
def test_every_claim_can_be_refuted(rows, spoil, claim, verdict):
    spoiled = deepcopy(rows)
    spoil(spoiled)
    assert verdicts(spoiled)[claim] == verdict


def test_correlations_of_nothing_are_none():
    assert correlate([], []).verdict == "unclear"
    assert correlate([1, 2, 3], [1, 2, 3]).rho is None
    assert correlate([1] * 9, list(range(9))).verdict == "unclear"
    assert str(correlate([1] * 9, list(range(9)))) == "-"


def test_the_interval_holds_the_correlation_and_shrinks():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = x + rng.normal(size=400)
    few, many = correlate(x[:20], y[:20]), correlate(x, y)
    for found in (few, many):
        assert found.low is not None and found.rho is not None and found.high is not None
        assert found.low < found.rho < found.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 6 / np.pi * np.arcsin(np.sqrt(0.5) / 2) < many.high  # Spearman's of a Gaussian of Pearson's


def test_learnable_is_surely_better_than_chance():
    assert is_learnable(make_row(error=0.5, chance=0.8, images=40))
    assert not is_learnable(make_row(error=0.42, chance=0.5, images=40))
    assert is_learnable(make_row(error=0.42, chance=0.5, images=4000))


def test_falls_are_told_from_noise():
    def points(*groups):
        return summarise([{"n": n, "d": d} for n, group in enumerate(groups) for d in group], "n", "d")

    assert find_falls(points([1, 2, 3], [1.1, 2.1, 2.7])) == []
    assert find_falls(points([1, 2, 3], [0.9, 1.9, 2.9])) == [(0, 1)]  # small, but in every nested subset
    assert find_falls(points([2.0], [1.0])) == [(0, 1)]


def read(place):
    with place.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_hold_what_the_figures_show(rows, tmp_path):
    files = write_properties(rows, make_claims(rows), tmp_path)
    names = {path.name for path in files}
    for name in ("norm_error", "labels", "classes", "sample_size"):
        assert {f"{name}.png", f"{name}.pdf", f"{name}.csv"} <= names
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    axes = draw_norm_error(rows["norm_error"]).axes[0]
    shown = sorted(tuple(point) for dots in axes.collections for point in dots.get_offsets().tolist())
    told = [(float(row["norm"]), 100 * float(row["error"])) for row in read(tmp_path / "norm_error.csv")]
    assert np.allclose(shown, sorted(told))
    table = read(tmp_path / "norm_error_correlations.csv")
    assert [row["tasks_of"] for row in table] == ["all tasks", "better than chance", "set_0", "set_1"]
    assert float(table[0]["spearman"]) == 1.0
    assert [row["verdict"] for row in read(tmp_path / "claims.csv")] == ["holds"] * 9


def test_curves_are_the_means_of_the_table(rows, tmp_path):
    write_rows(rows["sample_size"], tmp_path, "sample_size")
    axes = draw_sample_size(rows["sample_size"]).axes[0]
    curve = axes.containers[0].lines[0]
    told = [row for row in read(tmp_path / "sample_size.csv") if row["task"] == "a" and row["labels"] == TRUE]
    means = [np.mean([float(row["distance"]) for row in told if row["images_per_class"] == str(n)]) for n in (1, 2, 5)]
    assert np.allclose(curve.get_ydata(), means, rtol=1e-5)
    assert len(axes.containers) == 4  # two tasks and two controls
