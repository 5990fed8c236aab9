"""Tables of proposals: their rows, and the claims that rest on the table of docs/results/selection."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec as t2v
from experiments import proposals, selection
from experiments.report import load_bundle
from tests.experiments.material import parse, read_csv, run

SPACE = "resnet34 robust"


@pytest.fixture(scope="module")
def world():
    """Ten taxa of three datasets, five label sets, eleven models of which the last repeats another, and one space."""
    tasks = [0, 1, 2, 3, 24, 25, 26, 36, 37, 38, *range(49, 54)]
    small = load_bundle(None).only(tasks, [0, 1, *range(6, 12), 20, 31, 74])
    names = ("distances", "trivial_distances", "norms", "embeddings")
    return replace(small, **{name: {SPACE: getattr(small, name)[SPACE]} for name in names})


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proposals")
    where = ("--bundle", world.save(folder / "small.safetensors"), "--out", folder / "out", "--jobs", 1)
    result = run(selection.app, *where, "--part", "proposals", "--part", "violins")
    return folder / "out", result


def test_tables_and_figure(made):
    folder, result = made
    assert {path.name for path in folder.iterdir() if path.stem == "proposals"} == {
        *("proposals.csv", "proposals.md", "proposals.png")
    }
    assert "| taxa, 5 per class | rule |" in result.stdout
    rows = read_csv(folder / "proposals.csv")
    keys = {(row["family"], str(row["shots"]), row["leave"], row["known"], row["order"]) for row in rows}
    assert len(keys) == 14 * 5  # labels are of one dataset, of which nothing is known with it left out
    for row in rows:
        is_compared = row["order"] not in ("average-best", "all")
        assert (row["gap"] != "") == (row["p"] != "") == is_compared
        assert (row["p_group"] != "") == (is_compared and row["family"] == "taxa")


def test_rows_follow_from_the_errors(made, world):
    rows = read_csv(made[0] / "proposals.csv")
    about = {"space": SPACE, "family": "taxa", "shots": "half", "leave": "task", "known": "family"}
    selected = world.select("half", probe="resnet34", method="robust", family="taxa")
    halves, sources = selected.halves.mean(2), selected.to_sources("symmetric")
    errors = []
    for row in range(10):
        allowed = np.flatnonzero(selected.is_candidate[row])
        nearest = allowed[np.nanargmin(sources[row, allowed])]
        errors.append(halves[row, nearest].mean())
    found = {(row["order"], row["measured"]): row for row in rows if about.items() <= row.items()}
    assert found["nearest", 1]["error"] == pytest.approx(100 * np.mean(errors), rel=1e-5)
    gap = found["nearest", 1]["error"] - found["average-best", 1]["error"]
    assert found["nearest", 1]["gap"] == pytest.approx(gap, rel=1e-4)
    outcome = t2v.evaluate(world, ["generic"], shots="half", probe="resnet34", method="robust", family="taxa")
    assert found["all", "all"]["error"] == pytest.approx(100 * outcome.optimum.mean(), rel=1e-5)


def test_halves_are_needed(world):
    with pytest.raises(t2v.errors.DataError, match="no errors on two halves"):
        proposals.measure_proposals(replace(world, halves=None), proposals.list_proposal_settings(world)[0])


def test_comparisons_take_the_proposals_that_know_what_strategies_know(world):
    usual = proposals.find_usual(proposals.list_proposal_settings(world))
    alone = [(each.family, each.leave) for each in usual.values() if each.known == "all"]
    assert alone == [("labels", "dataset")] * 2 and len(usual) == 8
    assert all(each.setting == setting for setting, each in usual.items())


# --- the table of docs/results/selection ------------------------------------------------------------------------------

TABLE = Path(__file__).parents[2] / "docs" / "results" / "selection" / "proposals.csv"
# Both ways of leaving out, with errors known as in a library, and whole datasets.
KINDS = [
    (family, shots, leave, known)
    for leave, known in (("task", "family"), ("dataset", "all"))
    for family in ("taxa", "labels")
    for shots in ("half", "5")
] + [("datasets", shots, "task", "all") for shots in ("half", "5")]


def read_table():
    """The rows of the committed table in the paper's space."""
    names = ("space", "leave", "family", "shots", "known", "order")
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["space"] == SPACE]
    numbers = [{key: float(value) if value else None for key, value in row.items()
                if key not in (*names, "measured")} for row in rows]  # fmt: skip
    return [
        {name: row[name] for name in names} | {"measured": parse(row["measured"])} | values
        for row, values in zip(rows, numbers, strict=True)
    ]


@pytest.fixture(scope="module")
def table():
    """The same by kind of task, order, and number of models."""
    keys = ("family", "shots", "leave", "known", "order", "measured")
    return {tuple(row[key] for key in keys): row for row in read_table()}


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_four_measured_are_nearly_as_good_as_all(table, kind):
    """Within 1.5 points of all experts, and within 3 where no task of the dataset is known."""
    row, every = table[*kind, "rule", 4], table[*kind, "all", "all"]
    assert row["error"] - every["error"] == pytest.approx(row["all_gap"], abs=2e-4)
    assert row["all_gap"] <= (3.0 if kind[2] == "dataset" else 1.5)


@pytest.mark.parametrize("shots", ["half", "5"])
def test_on_label_sets_the_rule_is_better_than_other_orders(table, shots):
    for leave, known in (("task", "family"), ("dataset", "all")):
        row = table["labels", shots, leave, known, "rule", 4]
        assert row["gap"] <= -2.5 and row["p"] < 0.05  # than average-best
        assert row["domain_gap"] <= -2.5 and row["p_domain"] < 0.05  # than with distances of domain embeddings


def test_nowhere_is_the_rule_significantly_worse_than_average_best(table):
    for kind in KINDS:
        row = table[*kind, "rule", 4]
        assert row["gap"] < 0.3 or row["p"] > 0.05


@pytest.mark.parametrize(
    "kind",
    [kind if kind[0] == "labels" else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS],
    ids=lambda kind: " ".join(kind),
)
def test_the_table_is_what_the_code_gives(table, kind):
    family, shots, leave, known = kind
    metatask = load_bundle(proposals.WHOLE if family == "datasets" else None)
    setting = proposals.ProposalSetting(SPACE, leave, family, shots, known)
    rows = list(proposals.list_rows(setting, proposals.measure_proposals(metatask, setting)))
    assert len(rows) == sum(key[:4] == kind for key in table)
    for row in rows:
        stored = table[*kind, row["order"], row["measured"]]
        for name in ("error", "error_low", "gap", "p", "all_gap", "domain_gap", "p_group"):
            assert (stored[name] is None) == (row[name] is None)
            assert row[name] is None or row[name] == pytest.approx(stored[name], rel=1e-4, abs=1e-4)


def test_the_first_table_has_every_kind_once(table):
    text = proposals.format_few(read_table())
    assert len(text.splitlines()) == 2 + len(KINDS)
    row = table["labels", "half", "task", "family", "rule", 4]
    cells = f"| {row['error']:.1f} | {row['gap']:+.1f} ± {row['gap_se']:.1f} (p = {row['p']:.2g}) |"
    assert f"| labels, half of the images, one task left out {cells}" in text
