"""Tables and figures about choosing an expert, on a small meta-task whose answers are known."""

import csv
import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments import selection_probes, selection_table
from experiments.property_claims import HOLDS
from experiments.selection_choices import choose_experts
from experiments.selection_curves import compare, follow, make_curves, select_for_curves
from experiments.selection_forest import Bar, word_bar
from experiments.selection_matrix import find_distances, make_matrices
from experiments.selection_norms import make_norms
from experiments.selection_probes import make_probes
from experiments.selection_settings import (
    Setting,
    colour_datasets,
    gather,
    list_settings,
    list_spaces,
    word_task,
    write_outcome,
)
from experiments.selection_table import LEAVES, Comparison, make_table
from experiments.selection_violins import make_violins
from task2vec.distance import asymmetric
from task2vec.errors import DataError
from task2vec.experts.metatask import MetaTask
from task2vec.parallel import Unit, open_backend
from task2vec.select.evaluate import evaluate
from tests.experiments.selection_world import LABELS, TAXA, make_world, name_task

HALF = Setting("taxa", "half")
FEW_STRATEGIES = ("chance", "generic", "static", "symmetric", "asymmetric")


def read(place):
    with place.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_whole(folder, name):
    return all((folder / f"{name}.{suffix}").stat().st_size > 100 for suffix in ("png", "pdf", "csv", "json"))


@pytest.fixture(scope="module", autouse=True)
def hurry():
    """Few samples for the intervals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_table, "RESAMPLES", 200)
        patch.setattr(selection_probes, "RESAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    return folder, make_table(make_world(), folder, strategies=FEW_STRATEGIES)


# --- settings ---


def test_settings_and_spaces_are_in_order():
    assert [str(each) for each in list_settings(make_world())] == [
        "taxa, half of the images", "taxa, 5 per class", "labels, half of the images", "labels, 5 per class",
    ]  # fmt: skip
    assert list_spaces(make_world()) == ["resnet34 robust", "other direct"]


def test_evidence_of_a_family_is_that_of_the_source():
    ours, theirs = gather(make_world(), HALF), MetaTask(make_world(), "half", probe="resnet34", family="taxa")
    assert ours.tasks == theirs.tasks and ours.experts == theirs.experts
    assert np.array_equal(ours.errors, theirs.errors)
    assert np.array_equal(ours.to_lessons["symmetric"], theirs.to_lessons["symmetric"], equal_nan=True)


def test_names_and_colours():
    assert word_task("flowers_Asterales") == "Asterales" and word_task("cub200 half A") == "cub200 half A"
    colours = colour_datasets(["mine", "cub200", "yours", "mine"])
    assert len(set(colours.values())) == 3 and colours["cub200"] == "#0072b2"


def test_numbers_of_json_are_finite(tmp_path):
    numbers = {"a": np.float64("nan"), "b": [np.int64(3), np.bool_(True)], "c": 1 / 3, "d": np.arange(2)}
    write_outcome(tmp_path, "x", rows=[{"k": 1}], numbers=numbers)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [3, True], "c": 0.333333, "d": [0, 1]}


# --- Table 1 ---


def test_table_1_has_what_evaluate_finds(table):
    folder, made = table
    assert is_whole(folder, "table1") and str(folder / "table1.md") in map(str, made.files)
    rows = read(folder / "table1.csv")
    assert len(rows) == 4 * len(LEAVES) * len(FEW_STRATEGIES)
    for setting in list_settings(make_world()):
        expected = evaluate(gather(make_world(), setting), list(FEW_STRATEGIES), resamples=200).rows
        own = [
            r for r in rows if (r["family"], r["protocol"], r["leave"]) == (setting.family, setting.protocol, "task")
        ]
        for row, wanted in zip(own, expected, strict=True):
            assert row["strategy"] == wanted["strategy"]
            for key in ("error", "increase", "increase_low", "increase_high", "smallest_increase", "regret", "tau"):
                assert float(row[key]) == pytest.approx(wanted[key], rel=1e-4, abs=1e-4)


def test_a_family_of_one_dataset_learns_from_the_others_when_its_own_is_left_out(table):
    rows = read(table[0] / "table1.csv")
    own = [row for row in rows if row["family"] == "labels" and row["leave"] == "dataset"]
    assert own and {row["tasks"] for row in own} == {str(LABELS)}
    whole = MetaTask(make_world(), "half", probe="resnet34")
    wanted = evaluate(whole, ["static"], leave="dataset", asked=[name_task(n) for n in range(TAXA, TAXA + LABELS)])
    found = next(row for row in own if row["strategy"] == "static" and row["protocol"] == "half")
    assert float(found["error"]) == pytest.approx(100 * wanted.outcomes["static"].errors.mean(), rel=1e-5)


def test_the_text_and_the_numbers_agree(table):
    folder, made = table
    lines = made.text.splitlines()
    head = next(line for line in lines if line.startswith("|  |"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [str(each) for each in list_settings(make_world())]
    row = next(row for row in read(folder / "table1.csv") if row["strategy"] == "static")
    bar = Bar(*(float(row[key]) for key in ("increase", "increase_low", "increase_high")))
    assert next(line for line in lines if line.startswith("| static")).split("|")[2].strip().startswith(word_bar(bar))
    document = json.loads((folder / "table1.json").read_text())
    first = document["comparisons"][0]
    found = evaluate(gather(make_world(), HALF), ["asymmetric"])
    names = {task: found.experts[n] for task, n in zip(found.tasks, found.outcomes["asymmetric"].chosen, strict=True)}
    assert first["choices"]["asymmetric"] == names
    assert first["optimum"] == pytest.approx(found.optimum.mean(), rel=1e-5)


def test_workers_find_the_same_as_this_process(table):
    work, asked = Comparison(make_world(), FEW_STRATEGIES), (HALF, "task")
    with open_backend("pool", jobs=1) as engine:
        found = [result.value for result in engine.run(work, [Unit("a", asked)]) if not result.is_last]
    wanted = next(iter(work.open()(asked)))
    assert found[0].setting == HALF
    for name in FEW_STRATEGIES:
        assert np.array_equal(found[0].evaluation.outcomes[name].errors, wanted.evaluation.outcomes[name].errors)


# --- Table 2 ---


def test_table_2_compares_probes_on_all_tasks_and_on_the_largest(tmp_path):
    made = make_probes(make_world(), tmp_path)
    assert is_whole(tmp_path, "table2")
    rows = read(tmp_path / "table2.csv")
    row = next(r for r in rows if (r["family"], r["protocol"], r["strategy"], r["space"]) == (
        "taxa", "half", "asymmetric", "other direct"))  # fmt: skip
    found = evaluate(MetaTask(make_world(), "half", probe="other", method="direct", family="taxa"), ["asymmetric"])
    errors, best = found.outcomes["asymmetric"].errors, found.optimum
    assert float(row["all tasks"]) == pytest.approx(100 * (errors.sum() / best.sum() - 1), abs=1e-3)
    # Of twelve tasks the first two have the fewest images.
    assert float(row["largest ten"]) == pytest.approx(100 * (errors[2:].sum() / best[2:].sum() - 1), abs=1e-3)
    assert float(row["largest ten_low"]) <= float(row["largest ten"]) <= float(row["largest ten_high"])
    assert {r["space"] for r in rows if r["strategy"] in ("chance", "generic", "static")} == {""}
    assert "asymmetric, other direct" in made.text and made.claims


# --- figures ---


def test_choices_are_fitted_on_the_other_tasks():
    evidence = gather(make_world(), HALF)
    chosen = choose_experts(evidence, ["asymmetric", "no such strategy"])
    assert list(chosen.by) == ["asymmetric"]
    for row in range(TAXA):
        near = np.where(evidence.is_candidate[row], find_distances(evidence)[row], np.inf)
        assert chosen.by["asymmetric"][row] == np.nanargmin(near)
        means = np.where(evidence.is_candidate[row], evidence.mean[row], np.inf)
        assert chosen.optimum[row] == means.argmin()


def test_violins_are_in_the_order_of_norms_with_ranks_of_the_choices(tmp_path):
    made = make_violins(make_world(), tmp_path)
    assert is_whole(tmp_path, "violins_taxa") and is_whole(tmp_path, "violins_labels")
    rows = read(tmp_path / "violins_taxa.csv")
    assert len(rows) == TAXA
    norms = [float(row["norm"]) for row in rows]
    assert norms == sorted(norms)
    evidence = gather(make_world(), HALF)
    for row in rows:
        number = evidence.tasks.index(row["task"])
        errors = evidence.mean[number][evidence.is_candidate[number]]
        assert float(row["best_error"]) == pytest.approx(errors.min(), rel=1e-5)
        assert float(row["generic_error"]) == pytest.approx(evidence.mean[number, 0], rel=1e-5)
        assert int(row["asymmetric_rank"]) == 1 + (errors < float(row["asymmetric_error"]) - 1e-6).sum()
        assert int(row["candidates"]) == len(errors)
    assert {claim.property for claim in made.claims} == {"violins"}


def test_norms_are_ranked_against_the_error_of_the_best(tmp_path):
    made = make_norms(make_world(), tmp_path)
    assert is_whole(tmp_path, "norms")
    rows = [row for row in read(tmp_path / "norms.csv") if (row["family"], row["protocol"]) == ("taxa", "half")]
    evidence = gather(make_world(), HALF)
    best = np.where(evidence.is_candidate, evidence.mean, np.inf).min(1)
    expected = spearmanr(evidence.norms, best)[0]
    assert [float(row["optimum"]) for row in rows] == pytest.approx(best.tolist(), rel=1e-5)
    found = json.loads((tmp_path / "norms.json").read_text())["spearman"]
    own = next(f for f in found if (f["family"], f["protocol"], f["by"]) == ("taxa", "half", "resnet34 robust"))
    assert own["spearman"] == pytest.approx(expected, abs=1e-5) and own["low"] <= own["spearman"] <= own["high"]
    assert {f["by"] for f in found} == {"resnet34 robust", "other direct", "classes", "images"}
    claim = next(claim for claim in made.claims if claim.claim.startswith("taxa"))
    assert claim.verdict == HOLDS and f"{own['spearman']:.2f}" in claim.measured


def test_the_matrix_is_coloured_by_the_distance_from_lesson_to_task(tmp_path):
    made = make_matrices(make_world(), tmp_path)
    assert is_whole(tmp_path, "matrix_taxa") and is_whole(tmp_path, "matrix_labels")
    cells = {(row["task"], row["expert"]): row for row in read(tmp_path / "matrix_taxa.csv")}
    embeddings = {one.task: one for one in make_world().embeddings["resnet34 robust"]}
    cell = cells[name_task(2), f"expert {name_task(1)}"]
    assert float(cell["distance"]) == pytest.approx(
        asymmetric(embeddings[name_task(1)], embeddings[name_task(2)]), abs=1e-5
    )
    assert cells[name_task(2), "generic resnet34"]["distance"] == ""
    assert cells[name_task(1), f"expert {name_task(1)}"]["is_candidate"] == "0"
    for task in (name_task(number) for number in range(TAXA)):
        own = [row for (name, _), row in cells.items() if name == task]
        allowed = [row for row in own if row["is_candidate"] == "1"]
        assert [row for row in own if row["is_best"] == "1"] == [min(allowed, key=lambda row: float(row["error"]))]
        known = [row for row in allowed if row["distance"]]
        assert [row for row in own if row["is_selected"] == "1"] == [min(known, key=lambda row: float(row["distance"]))]
    assert [claim.property for claim in made.claims] == ["matrix", "matrix"]


# --- curves ---


def test_curves_follow_who_was_selected_without_them(tmp_path):
    points = make_world().story["curves"]
    picked = select_for_curves(make_world(), points)
    assert set(picked) == {name_task(2), name_task(3)}
    assert set(picked[name_task(2)]["candidates"]) == {
        "generic resnet34", f"expert {name_task(0)}", f"expert {name_task(1)}"
    }  # fmt: skip
    rows = follow(points, picked)
    best = [row for row in rows if row["choice"] == "best"]
    assert {row["expert"] for row in best} == {f"expert {name_task(1)}"}  # who has the smallest errors above
    row = next(r for r in best if (r["task"], r["way"], r["train"]) == (name_task(2), "tuned", "5"))
    assert row["error"] == pytest.approx(0.5 - 0.1 + 0.005 - 0.04 + 0.03)
    assert (row["low"], row["high"]) == pytest.approx((0.39, 0.40))
    gaps = compare(rows)
    own = next(gap for gap in gaps if (gap["way"], gap["train"]) == ("linear", "2"))
    assert own["tasks"] == 2 and own["generic"] - own["best"] == pytest.approx(0.04)
    assert own["generic above best"] == pytest.approx(own["generic"] / own["best"] - 1)
    assert [gap["train"] for gap in gaps if gap["way"] == "linear"] == ["2", "5", "half"]
    made = make_curves(make_world(), tmp_path)
    assert is_whole(tmp_path, "curves") and len(made.claims) == 2


def test_an_expert_that_saw_the_task_is_neither_selected_nor_best():
    points = [{**point, "task": name_task(1)} for point in make_world().story["curves"]]
    picked = select_for_curves(make_world(), points)
    assert f"expert {name_task(1)}" not in picked[name_task(1)]["candidates"]
    assert {row["expert"] for row in follow(points, picked)} <= {"generic resnet34", f"expert {name_task(0)}"}


def test_curves_of_a_table_and_what_is_missing(tmp_path):
    made = make_curves(make_world(has_curves=False), tmp_path)
    assert not made.files and "--curves FILE.csv" in made.missing[0]
    points = make_world().story["curves"]
    place = tmp_path / "points.csv"
    with place.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(points[0]))
        writer.writeheader()
        writer.writerows(points)
    made = make_curves(make_world(has_curves=False), tmp_path, table=place)
    assert is_whole(tmp_path, "curves") and not made.missing
    place.write_text("task,expert\na,b\n")
    with pytest.raises(DataError, match="lacks the columns error, images, seed, train, way"):
        make_curves(make_world(has_curves=False), tmp_path, table=place)
    with pytest.raises(DataError, match="cannot be read as a table of curves"):
        make_curves(make_world(has_curves=False), tmp_path, table=tmp_path / "none.csv")
    with pytest.raises(DataError, match="a task 'else' that 'small' does not know"):
        select_for_curves(make_world(), [{**points[0], "task": "else"}])
