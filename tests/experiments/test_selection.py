"""Choosing an expert: tables, figures and claims on a small meta-task, and the committed ones on the bundled."""

from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import task2vec as t2v
from experiments import selection
from experiments import selection_figures as figures
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR, write_rows
from experiments.selection import Comparison
from task2vec.experts import ModelInfo, TaskInfo
from tests.experiments.material import ROOT, read_csv, run
from tests.select.material import FIVE, HALF, embed, fingerprint

TAXA, LABELS = 12, 5
FEW = ("--jobs", 1, "--strategy", "average_best", "--strategy", "generic", "--strategy", "asymmetric")


def name_task(number):
    return f"cub_bird{number}" if number < TAXA else f"birds: label set {number}"


@cache
def make_world(*, has_curves=True):
    """Errors are smaller on the dataset of an expert's source task; experts have seen their source tasks."""
    rng = np.random.default_rng(3)
    kinds = [("labels", "birds") if n >= TAXA else ("taxa", "ab"[n % 2]) for n in range(TAXA + LABELS)]
    tasks = tuple(TaskInfo(name_task(n), *kind, fingerprint(n), 40 + 10 * n, 2 + n % 3) for n, kind in enumerate(kinds))
    sources = [0, 1, 4, 5, 13, 14]
    models = [ModelInfo("generic resnet34", "generic", params=21), ModelInfo("big", "network", params=9)]
    models += [ModelInfo(f"expert {name_task(n)}", "taxon", "resnet34", name_task(n), fingerprint(n)) for n in sources]
    models.append(ModelInfo("again", "taxon", "resnet34", name_task(0), fingerprint(0), is_repeat=True))
    shape = (len(tasks), len(models), 2, 3)
    gain, shares = np.zeros(shape[:2]), np.zeros(shape[:2])
    for column, source in enumerate(sources, start=2):
        gain[:, column] = [0.06 if tasks[source].dataset == task.dataset else -0.04 for task in tasks]
        shares[source, column] = 1.0
    base = 0.15 + 0.02 * np.arange(len(tasks))[:, None, None, None] + np.array([0.08, 0.0])[:, None]
    errors = np.clip(base - gain[:, :, None, None] + 0.015 * rng.normal(size=shape), 0.01, 0.9)
    points = []
    experts = ("generic resnet34", f"expert {name_task(0)}", f"expert {name_task(1)}")
    shots = (("2", 4), ("5", 10), ("half", 30))
    numbers = (range(2, 4), range(2), range(3), range(3), range(2))
    for task, way, column, place, seed in product(*numbers):
        about = {"task": name_task(task), "expert": experts[column], "way": ("linear", "tuned")[way], "seed": seed}
        about |= {"error": 0.5 - 0.1 * place + 0.01 * seed - 0.02 * column + 0.03 * way}
        points.append(about | dict(zip(("train", "images"), shots[place], strict=True)))
    embeddings = {}
    for probe, method in (("other", "direct"), ("resnet34", "robust")):
        about = {"probe": probe, "method": method, "weights": probe[:2]}
        both = [embed(task.name, n, kind="ab birds".find(task.dataset), **about) for n, task in enumerate(tasks)]
        embeddings[f"{probe} {method}"] = both
    whole = (errors, errors * 0.9, np.minimum(errors * 1.1, 1), shares, np.zeros(shape[:2], dtype=bool))
    more = {"scores": {"logme": rng.normal(size=shape[:3])}, "domains": {"resnet34": rng.random((len(tasks), 6))}}
    more |= {"embeddings": embeddings, "info": {"curves": points} if has_curves else {}}
    return t2v.MetaTask("small", tasks, tuple(models), (FIVE, HALF), (0, 1, 2), *whole, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All tables and figures of the small meta-task, with few strategies."""
    folder = tmp_path_factory.mktemp("made")
    bundle = make_world().save(folder / "small.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "RESAMPLES", 200)
        result = run(selection.app, "--bundle", bundle, "--out", folder / "out", *FEW)
    return folder / "out", result


def test_all_of_them_at_once(made):
    folder, result = made
    names = {path.name for path in folder.iterdir()}
    stems = ("norms", "violins_taxa", "violins_labels", "matrix_taxa", "matrix_labels", "curves")
    assert names >= {f"{stem}.{suffix}" for stem in stems for suffix in ("png", "csv")}
    assert names >= {"table1.md", "table1.csv", "table1.json", "table2.md", "table2.csv", "claims.md", "claims.csv"}
    assert "|  | taxa, half of the images |" in result.stdout and "| average-best | " in result.stdout
    assert "| kernel" not in result.stdout


def test_table_1_has_every_setting_and_its_dataset_left_out(made):
    rows = read_csv(made[0] / "table1.csv")
    keys = {(row["family"], str(row["shots"]), row["leave"]) for row in rows}
    assert keys == {(f, s, leave) for f in ("taxa", "labels") for s in ("half", "5.0") for leave in ("task", "dataset")}
    metatask = make_world()
    for row in (row for row in rows if row["strategy"] == "generic" and row["leave"] == "task"):
        own = metatask.subset(family=row["family"]).errors[:, 0, 0 if row["shots"] == 5 else 1].mean()
        assert row["error"] == pytest.approx(100 * own, rel=1e-4)


def test_table_2_compares_probes_on_all_tasks_and_on_the_largest(made):
    rows = read_csv(made[0] / "table2.csv")
    wanted = {("asymmetric", "resnet34 robust"), ("asymmetric", "other direct"), ("generic", ""), ("average_best", "")}
    assert {(row["strategy"], row["space"]) for row in rows} == wanted
    found = next(row for row in rows if (row["family"], row["shots"], row["strategy"]) == ("taxa", "half", "generic"))
    taxa = make_world().subset(family="taxa")
    errors = taxa.errors[:, :, 1].mean(2)
    smallest = np.nanmin(np.where(taxa.is_candidate, errors, np.nan), axis=1)
    for part, first in (("all tasks", 0), ("largest ten", 2)):
        over = 100 * (errors[first:, 0].sum() / smallest[first:].sum() - 1)
        assert found[f"{part}, over smallest"] == pytest.approx(over, rel=1e-4)


def test_violins_and_matrix_agree_with_the_errors(made):
    metatask = make_world().select("half", probe="resnet34", method="robust", family="taxa")
    means = np.where(metatask.is_candidate, metatask.mean, np.nan)
    rows = read_csv(made[0] / "violins_taxa.csv")
    assert [row["norm"] for row in rows] == sorted(row["norm"] for row in rows)
    for row in rows:
        own = means[int(row["number"])]
        assert row["best_error"] == pytest.approx(np.nanmin(own), rel=1e-5)
        assert row["asymmetric_rank"] == 1 + np.nansum(own < row["asymmetric_error"] - 1e-5)
    cells = read_csv(made[0] / "matrix_taxa.csv")
    assert all(cell["is_best"] in (0, 1) for cell in cells) and sum(cell["is_best"] for cell in cells) == TAXA
    one = next(cell for cell in cells if cell["expert"] == f"expert {name_task(4)}" and cell["task"] == name_task(2))
    # The file has Fishers to a part in a thousand, and the matrix is made from it.
    embeddings = t2v.load_metatask(made[0].parent / "small.safetensors").embeddings["resnet34 robust"]
    assert one["distance"] == pytest.approx(t2v.distance.asymmetric(embeddings[4], embeddings[2]), rel=1e-4)


def test_curves_follow_the_choices(made):
    rows = read_csv(made[0] / "curves.csv")
    wanted = {"task": name_task(2), "way": "linear", "images": 4, "choice": "best"}
    best = next(row for row in rows if wanted.items() <= row.items())
    assert best["expert"] == f"expert {name_task(1)}" and best["error"] == pytest.approx(0.5 + 0.005 - 0.04)
    assert (best["low"], best["high"]) == pytest.approx((0.46, 0.47))
    generic, expert = "generic resnet34", f"expert {name_task(0)}"
    choice = {"selected": expert, "generic": generic, "candidates": [generic, expert]}
    choices = dict.fromkeys((name_task(2), name_task(3)), choice)
    gaps = figures.compare_choices(figures.list_curves(make_world().info["curves"], choices))
    assert all(row["selected"] == row["best"] == pytest.approx(row["generic"] - 0.02) for row in gaps)


def test_curves_that_are_missing_are_reported(tmp_path):
    bundle = make_world(has_curves=False).save(tmp_path / "bare.safetensors")
    result = run(selection.app, "--bundle", bundle, "--out", tmp_path, "--part", "curves", "--jobs", 1)
    assert "curves are missing" in result.stderr and not list(tmp_path.glob("curves*"))
    (tmp_path / "else").write_bytes(b"else")
    run(selection.app, "--bundle", tmp_path / "else", "--out", tmp_path, code=3)
    assert "no strategy called 'luck'" in run(selection.app, "--strategy", "luck", "--out", tmp_path, code=2).stderr
    assert "--part pie is unknown" in run(selection.app, "--part", "pie", "--out", tmp_path, code=2).stderr


def fake(errors, covered=None):
    return SimpleNamespace(errors=errors, covered=covered)


def judge(outcomes, *, leave="task", optimum=0.2):
    evaluation = SimpleNamespace(outcomes=outcomes, optimum=np.full(20, optimum))
    return selection.judge_table({Comparison("taxa", "half", leave, "s", ()): evaluation})


def test_verdicts_of_table_1():
    rng = np.random.default_rng(0)
    low, high = 0.2 + 0.001 * rng.random(20), 0.3 + 0.001 * rng.random(20)
    claims = judge({"generic": fake(low), "chance": fake(high)})
    assert claims[0].verdict == HOLDS and claims[0].measured.startswith("-10.0 points")
    assert judge({"generic": fake(high), "chance": fake(low)})[0].verdict == FAILS
    mixed = np.where(np.arange(20) % 2, low, high)
    assert judge({"generic": fake(mixed), "chance": fake(mixed[::-1])})[0].verdict == UNCLEAR
    outcomes = {"combined": fake(low, np.full(20, 0.9)), "average_best": fake(high), "logme": fake(low)}
    goal, best, covered = judge(outcomes)
    assert (goal.verdict, best.verdict, covered.verdict) == (HOLDS, PARTLY, HOLDS) and covered.measured == "90.0 %"
    assert best.measured == "surely better than 1 of 2; worse than: logme"
    assert judge(outcomes, optimum=0.19)[0].verdict == FAILS
    apart = judge(outcomes, leave="dataset")[0]
    assert apart.verdict == HOLDS and "not worse than average-best" in apart.claim
    swapped = outcomes | {"average_best": fake(low), "combined": fake(high)}
    assert judge(swapped, leave="dataset")[0].verdict == FAILS


def test_the_committed_figures_of_the_bundled_meta_task_come_out_again(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw_matrix", lambda *_: None)  # a small one is drawn above
    monkeypatch.setattr(figures.plots, "save_picture", lambda *_: None)
    folder, metatask = ROOT / "docs" / "results" / "selection", t2v.bundled_metatask()
    wanted = [row for row in read_csv(folder / "norms.csv") if row["family"] == "labels" and row["shots"] == "half"]
    spaces = selection.list_spaces(metatask)
    assert list(wanted[0])[-len(spaces) :] == spaces
    found = figures.list_norms(metatask, "labels", "half", spaces)
    assert read_csv(write_rows(found, tmp_path / "norms.csv")) == wanted
    selected = metatask.select("half", probe="resnet34", method="robust", family="labels")
    outcome = t2v.evaluate(metatask, ["asymmetric"], shots="half", probe="resnet34", method="robust", family="labels")
    claim = figures.make_matrix(selected, outcome, "labels", tmp_path)[0]
    assert f"{claim.claim} | {claim.measured} | {claim.verdict}" in (folder / "claims.md").read_text()
    assert (tmp_path / "matrix_labels.csv").read_text() == (folder / "matrix_labels.csv").read_text()
