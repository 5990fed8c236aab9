"""Choosing an expert: tables, figures and claims on a small meta-task, and the committed ones on that of experts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import task2vec as t2v
from experiments import primary, selection
from experiments import selection_figures as figures
from experiments.report import FAILS, HOLDS, UNCLEAR, load_bundle, write_rows
from experiments.settings import Setting, describe_experts, find_recipe
from task2vec.embedding import Embedding
from task2vec.metatask import ModelInfo, TaskInfo
from task2vec.probe import FilterLayer
from task2vec.select.strategies import find_known_errors
from tests.experiments.material import ROOT, load_with_repeat, read_csv, run

FEW = ("--jobs", 1, "--strategy", "average_best", "--strategy", "generic", "--strategy", "asymmetric")


@pytest.fixture(scope="module")
def world():
    """Fourteen taxa with those of the curves, five label sets, and ten models of which the last repeats another."""
    tasks = [*range(10), 12, 24, 40, 44, *range(49, 54)]
    small = load_with_repeat(tasks, [0, 1, *range(6, 12), 20])
    return replace(small, distances={}, trivial_distances={}, norms={})  # of other probes


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    """All tables and figures of the small meta-task, with few strategies."""
    folder = tmp_path_factory.mktemp("made")
    bundle = world.save(folder / "small.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "RESAMPLES", 200)
        patch.setattr("experiments.report._RESAMPLES", 200)
        parts = [word for part in selection.PARTS[:5] for word in ("--part", part)]
        result = run(selection.app, "--bundle", bundle, "--out", folder / "out", *FEW, *parts)
    return folder / "out", result


def test_all_of_them_at_once(made):
    folder, result = made
    stems = {"norms", "violins_taxa", "violins_labels", "matrix_taxa", "matrix_labels", "curves"}
    assert {path.stem for path in folder.glob("*.png")} == stems
    tables = {path.name for path in folder.iterdir()}
    assert tables >= {"norms.csv", "table1.md", "table2.md", "claims.md", "claims.csv"}
    assert "|  | taxa, half of the images |" in result.stdout and "| average-best | " in result.stdout
    assert "| kernel" not in result.stdout
    for row in selection.PAPERS.values():  # the paper's are there, whatever was asked for
        assert f"| {row} |" in result.stdout
    assert (
        "| model space (our weight decay) |" not in result.stdout and "two-sided" in (folder / "table1.md").read_text()
    )
    assert (folder / "claims.md").read_text().count("two-sided") == 1
    for name in ("claims.md", "table1.md", "table2.md"):
        note = (folder / name).read_text().rsplit("Experts by achille2019. ", 1)[1]
        assert note.startswith("The resnet34 that they were fine-tuned from is no library's: the body of a published")
    assert all(row["verdict"].endswith(" (experts by achille2019)") for row in read_csv(folder / "claims.csv"))


def test_table_1_has_every_setting_and_its_dataset_left_out(made, world):
    rows = read_csv(made[0] / "table1.csv")
    keys = {(row["family"], str(row["shots"]), row["leave"]) for row in rows}
    assert keys == {(f, s, leave) for f in ("taxa", "labels") for s in ("half", "5.0") for leave in ("task", "dataset")}
    for row in (row for row in rows if row["strategy"] == "generic" and row["leave"] == "task"):
        own = world.subset(family=row["family"]).errors[:, 0, 1 if row["shots"] == 5 else 0].mean()
        assert row["error"] == pytest.approx(100 * own, rel=1e-4)


def test_scores_choose_among_candidates_and_are_judged_on_the_first_split(made, world):
    for row in read_csv(made[0] / "scores.csv"):
        subset, errors = world.subset(family=row["family"]), []
        number = 1 if row["shots"] == 5 else 0
        for task in range(len(subset.tasks)):
            scores = {
                model: subset.scores[row["score"]][task, model, number]
                for model in range(len(subset.models))
                if subset.is_candidate[task, model] and np.isfinite(subset.scores[row["score"]][task, model, number])
            }
            errors.append(subset.errors[task, max(scores, key=scores.get), number, 0])
        assert row["error"] == pytest.approx(100 * np.mean(errors), rel=1e-4)
        assert row["error"] - row["average_best"] == pytest.approx(row["gap"], abs=1e-3)


def test_table_2_compares_probes_on_all_tasks_and_on_the_largest(made, world):
    rows = read_csv(made[0] / "table2.csv")
    wanted = {("asymmetric", f"{probe} robust") for probe in ("resnet34", "tf_efficientnet_lite0")}
    wanted |= {(name, "") for name in selection.BASELINES}
    assert {(row["strategy"], row["space"]) for row in rows} == wanted
    found = next(row for row in rows if (row["family"], row["shots"], row["strategy"]) == ("taxa", "half", "generic"))
    taxa = world.select("half", family="taxa")
    smallest = np.nanmin(find_known_errors(taxa), axis=1)
    largest = np.argsort([-task.images for task in taxa.tasks], kind="stable")[:10]
    for part, tasks in (("all tasks", slice(None)), ("largest ten", largest)):
        over = 100 * (taxa.mean[tasks, 0].sum() / smallest[tasks].sum() - 1)
        assert found[f"{part}, over smallest"] == pytest.approx(over, rel=1e-4)


def test_violins_and_matrix_agree_with_the_errors(made, world):
    metatask = world.select("half", probe="resnet34", method="robust", family="taxa")
    means = np.where(metatask.is_candidate, metatask.mean, np.nan)
    rows = read_csv(made[0] / "violins_taxa.csv")
    assert [row["norm"] for row in rows] == sorted(row["norm"] for row in rows)
    for row in rows:
        own = means[int(row["number"])]
        assert row["best_error"] == pytest.approx(np.nanmin(own), rel=1e-5)
        assert row["asymmetric_rank"] == 1 + np.nansum(own < row["asymmetric_error"] - 1e-5)
    cells = read_csv(made[0] / "matrix_taxa.csv")
    assert all(cell["is_best"] in (0, 1) for cell in cells) and sum(cell["is_best"] for cell in cells) == 14
    one = next(cell for cell in cells if (cell["expert"], cell["task"]) == ("dogs half A", metatask.tasks[2].name))
    embeddings = metatask.embeddings
    source = metatask.source_rows[[model.name for model in metatask.models].index("dogs half A")]
    assert one["distance"] == pytest.approx(t2v.distance.asymmetric(embeddings[source], embeddings[2]), rel=1e-4)


def test_curves_follow_the_choices(made, world):
    points, task = world.info["curves"], "flowers_Asterales"

    def list_errors(**wanted):
        return [point["error"] for point in points if wanted.items() <= point.items()]

    allowed = world.is_candidate[[one.name for one in world.tasks].index(task)]
    names = {one.name for one, may in zip(world.models, allowed, strict=True) if may}
    every = [
        (errors, name) for name in names if (errors := list_errors(task=task, way="linear", train="2", expert=name))
    ]
    errors, name = min(every, key=lambda pair: np.mean(pair[0]))
    wanted = {"task": task, "way": "linear", "shots": 2, "choice": "best", "expert": name}
    best = next(row for row in read_csv(made[0] / "curves.csv") if wanted.items() <= row.items())
    ends = (np.mean(errors), min(errors), max(errors))
    assert (best["error"], best["low"], best["high"]) == pytest.approx(ends, rel=1e-5)
    experts, tasks = ("cub200 half A", "generic resnet34"), sorted({point["task"] for point in points})
    choices = {task: {"selected": experts[0], "generic": experts[1], "candidates": experts} for task in tasks}
    for gap in figures.compare_choices(figures.list_curves(points, choices)):
        about = {"way": gap["way"], "train": gap["shots"]}
        both = np.array([[np.mean(list_errors(task=one, expert=name, **about)) for one in tasks] for name in experts])
        assert (gap["selected"], gap["generic"], gap["best"]) == pytest.approx((*both.mean(1), both.min(0).mean()))


def test_curves_that_are_missing_are_reported(world, tmp_path):
    bundle = replace(world, info={}).save(tmp_path / "bare.safetensors")
    result = run(selection.app, "--bundle", bundle, "--out", tmp_path, "--part", "curves", "--jobs", 1)
    assert "curves are missing" in result.stderr and not list(tmp_path.glob("curves*"))
    (tmp_path / "else").write_bytes(b"else")
    for option, value, code, words in (
        ("--bundle", tmp_path / "else", 3, "not a meta-task"),
        ("--strategy", "luck", 2, "no strategy called 'luck'"),
        ("--part", "pie", 2, "--part pie is unknown"),
        ("--against", tmp_path / "else", 2, "Add --part primary"),
    ):
        assert words in run(selection.app, option, value, "--out", tmp_path, "--part", "norms", code=code).stderr


def make_published():
    """Seven tasks of an experiment of its owner: one protocol, one split, no families, domains, scores or halves."""
    rng, count = np.random.default_rng(0), 7
    fisher = np.exp(rng.normal(size=(2, count, 1)) + 0.3 * rng.normal(size=(2, count, 12)))
    layers, blank = (FilterLayer("conv", "convolution", 12, 9, 0.1),), np.full(12, np.nan)
    spaces = {}
    for probe, values in zip(("torchvision:vgg13", "torchvision:resnet34"), fisher, strict=True):
        shared = {"probe_fingerprint": probe, "settings": {"method": "robust"}}
        about = [shared | {"task_fingerprint": f"print {row}"} for row in range(count)]
        spaces[f"{probe} robust"] = [
            Embedding(f"order {row}", probe, one, blank, np.full(12, 1e-3), layers, about[row])
            for row, one in enumerate(values)
        ]
    tasks = tuple(TaskInfo(f"order {n}", dataset="inat", fingerprint=f"print {n}", images=90 + n) for n in range(count))
    experts = (ModelInfo(f"expert {n}", "taxon", "resnet34", f"order {n}", f"print {n}") for n in range(count))
    models = (ModelInfo("generic resnet34", "generic", "resnet34"), *experts)
    errors = rng.uniform(0.2, 0.6, size=(count, count + 1, 1, 1))
    seen = np.eye(count, count + 1, 1)
    cells = (errors, np.full_like(errors, np.nan), np.full_like(errors, np.nan))
    more = {"shares_images": seen, "shares_labels": np.zeros_like(seen, dtype=bool), "embeddings": spaces}
    key = "linear-2, train all, achille2019, usual, own test set"
    return t2v.MetaTask("owner", tasks, models, (key,), (0,), *cells, info={"curves": []}, **more)


def test_a_meta_task_of_one_split_with_other_probes_and_without_all_else(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "RESAMPLES", 50)
    metatask = make_published()
    bundle, out = metatask.save(tmp_path / "owner.safetensors"), tmp_path / "out"
    result = run(selection.app, "--bundle", bundle, "--out", out, "--jobs", 1)
    assert "curves are missing" in result.stderr and "primary comparisons and proposals are missing" in result.stderr
    assert {file.stem for file in out.glob("*.png")} == {"norms", "violins_tasks", "matrix_tasks"}
    text = (out / "table1.md").read_text()
    means = metatask.mean_errors()[:, :, 0]
    errors = np.where(metatask.is_candidate, means, np.inf)
    assert f"| optimum, error in % | {100 * errors.min(1).mean():.1f} (smallest) |" in text
    assert "optimum is the smallest error, as in the paper; it is biased low" in text and "|  | all images |" in text
    assert "dataset left out" not in text and "†" not in text  # of the one dataset there is nothing else to learn from
    rows = {row["strategy"]: row for row in read_csv(out / "table1.csv")}
    assert set(selection.PAPERS) | {"model space", "average_best"} <= set(rows)
    over = {name: 100 * (each.mean() / errors.min(1).mean() - 1) for name, each in (
        ("generic", means[:, 0]),
        ("chance", np.array([row[np.isfinite(row)].mean() for row in errors])),
    )}  # fmt: skip
    for name, wanted in over.items():
        assert rows[name]["smallest_increase"] == pytest.approx(wanted, rel=1e-4) and rows[name]["increase"] == ""
    embedded = metatask.embeddings["torchvision:resnet34 robust"]  # the paper's probe is the main one
    chosen = []
    for task in range(7):
        far = [t2v.distance.asymmetric(embedded[n], embedded[task]) if n != task else np.inf for n in range(7)]
        chosen.append(means[task, 1 + int(np.argmin(far))])
    assert rows["asymmetric"]["error"] == pytest.approx(100 * np.mean(chosen), rel=1e-3)
    table2 = read_csv(out / "table2.csv")
    spaces = {row["space"] for row in table2 if row["strategy"] == "asymmetric"}
    assert spaces == {"torchvision:resnet34 robust", "torchvision:vgg13 robust"}
    assert all("largest ten" in row and "all tasks" in row for row in table2)
    assert "as in the paper" in (out / "table2.md").read_text()


def test_settings_of_any_protocols_and_the_papers_probe_first(world):
    published = make_published()
    assert selection.list_settings(published) == [("", "all")]
    assert selection.list_spaces(published)[0] == "torchvision:resnet34 robust"
    assert selection.list_settings(world) == [(family, size) for family in ("taxa", "labels") for size in ("half", "5")]
    keys = ("linear-2, train 5, logistic, usual", "linear-2, train 5, achille2019, usual", "knn")
    three = replace(published, protocols=keys, **{
        name: np.repeat(getattr(published, name), 3, axis=2) for name in ("errors", "low", "high")
    })  # fmt: skip
    assert selection.list_settings(three) == [("", "knn"), ("", keys[0]), ("", keys[1])]  # no size stands for two
    bare = replace(published, embeddings={})
    with pytest.raises(t2v.errors.DataError, match="no embeddings and no distances"):
        selection.list_spaces(bare)


def test_verdicts_name_the_recipe_that_all_candidates_share(world):
    assert find_recipe(world) == "achille2019"  # the last one repeats another by fast
    models = [replace(model, recipe="fast") if model.name == "dogs half A" else model for model in world.models]
    assert find_recipe(replace(world, models=tuple(models))) == ""
    assert describe_experts(make_published()) == ""


def test_every_setting_is_evaluated_once_for_all_parts(world):
    planned = selection.plan_evaluations(world, selection.PARTS, ["average_best", "domain", "asymmetric"])
    main, second = (f"{probe} robust" for probe in ("resnet34", "tf_efficientnet_lite0"))
    assert planned[Setting(main, "dataset", "taxa", "5")] == (
        *("average_best", "domain", "asymmetric"), "symmetric", "generic", "model space published"
    )  # fmt: skip
    assert set(planned[Setting(second, "task", "taxa", "5")]) == {*primary.NAMES}
    assert {setting.leave for setting in planned if setting.space == second} == {"task"}
    alone = selection.plan_evaluations(world, ["primary"], ["domain"])
    assert list(alone) == primary.list_compared(world) and set(alone.values()) == {primary.NAMES}
    assert selection.plan_evaluations(world, ["norms", "curves", "proposals"], ["domain"]) == {}


def judge(**errors):
    outcomes = {name: SimpleNamespace(errors=each) for name, each in errors.items()}
    return selection.judge_table({Setting("s", "task", "taxa", "half"): SimpleNamespace(outcomes=outcomes)})


def test_verdicts_of_table_1():
    rng = np.random.default_rng(0)
    low, high = 0.2 + 0.001 * rng.random(20), 0.3 + 0.001 * rng.random(20)
    mixed = np.where(np.arange(20) % 2, low, high)
    for one, other, verdict in ((low, high, HOLDS), (high, low, FAILS), (mixed, mixed[::-1], UNCLEAR)):
        assert judge(generic=one, chance=other)[0].verdict == verdict
    assert judge(generic=low, chance=high)[0].measured.startswith("-10.0 points")


def test_the_committed_figures_of_the_meta_task_of_experts_come_out_again(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw_matrix", lambda *_: None)  # a small one is drawn above
    monkeypatch.setattr(figures.plots, "save_picture", lambda *_: None)
    folder, metatask = ROOT / "docs" / "results" / "selection", load_bundle(None)
    wanted = [row for row in read_csv(folder / "norms.csv") if row["family"] == "labels" and row["shots"] == "half"]
    spaces = selection.list_spaces(metatask)
    assert list(wanted[0])[-len(spaces) :] == spaces
    found = figures.list_norms(metatask, "labels", "half", spaces)
    assert read_csv(write_rows(found, tmp_path / "norms.csv")) == wanted
    selected = metatask.select("half", probe="resnet34", method="robust", family="labels")
    outcome = t2v.evaluate(metatask, ["asymmetric"], shots="half", probe="resnet34", method="robust", family="labels")
    claim = figures.make_matrix(selected, outcome, "labels", tmp_path)[0]
    assert (
        f"{claim.claim} | {claim.measured} | {claim.verdict} (experts by achille2019)"
        in (folder / "claims.md").read_text()
    )
    assert (tmp_path / "matrix_labels.csv").read_text() == (folder / "matrix_labels.csv").read_text()
