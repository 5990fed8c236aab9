"""The comparisons that were fixed before looking: the list of the plan, verdicts, Holm's p, and two recipes."""

from dataclasses import replace

import numpy as np
import pytest

import task2vec as t2v
from experiments import primary, selection
from experiments.embeddings import share_embeddings
from experiments.report import load_bundle
from experiments.settings import Setting
from tests.experiments.material import ROOT, read_csv, run

SPACE = "resnet34 robust"


@pytest.fixture(scope="module")
def world():
    """Ten taxa of three datasets, five label sets, ten models and one space."""
    tasks = [0, 1, 2, 3, 24, 25, 26, 36, 37, 38, *range(49, 54)]
    small = load_bundle(None).only(tasks, [0, 1, *range(6, 12), 20, 31])
    names = ("distances", "trivial_distances", "norms", "embeddings")
    return replace(small, **{name: {SPACE: getattr(small, name)[SPACE]} for name in names})


def test_the_comparisons_are_those_of_the_plan():
    plan = (ROOT / "docs" / "results" / "selection" / "plan.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in plan.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert [int(number) for number, *_ in lines] == list(range(1, len(primary.COMPARISONS) + 1))
    words = {
        "symmetric": "nearest expert, symmetric", "asymmetric": "nearest expert, asymmetric", "generic": "the generic",
        "model space published": "model space, the published hyperparameters", "average_best": "average-best",
    }  # fmt: skip
    for (_, better, than), names in zip(lines, primary.COMPARISONS, strict=True):
        for text, name in zip((better, than), names, strict=True):
            if name in words:
                assert text.startswith(words[name])
            else:
                order, count, _ = name.replace(",", "").split()
                assert count in text and (order in text or "the same" in text)


def test_verdicts():
    datasets = np.array(["a", "b"] * 10)
    for sign, verdict in ((-1, "holds"), (1, "fails")):
        row = primary.judge_gaps(sign * np.linspace(1, 2, 20), datasets)
        assert row["verdict"] == verdict and row["gap"] == pytest.approx(sign * 1.5)
        assert row["p"] < 0.001 and row["p_datasets"] == 0.5
    row = primary.judge_gaps(np.tile([-1.0, 1.2], 10), np.array(["a"] * 20))
    assert row["verdict"] == "inconclusive" and row["p_datasets"] is None
    assert row["gap_se"] == pytest.approx(np.std(np.tile([-1.0, 1.2], 10), ddof=1) / np.sqrt(20))


def test_holm():
    assert primary.adjust_holm([0.04, 0.01, 0.03, 0.005]).tolist() == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert primary.adjust_holm([0.6, 0.9]).tolist() == [1, 1]


def test_all_at_once_against_another_recipe(world, tmp_path, monkeypatch):
    pairs = (("asymmetric", "generic"), ("rule, 3 measured", "average-best, 3 measured"))
    monkeypatch.setattr(primary, "COMPARISONS", pairs)
    monkeypatch.setattr(primary, "NAMES", ("asymmetric", "generic"))
    worse = np.clip(world.errors + np.where(np.arange(10) < 2, 0, 0.1)[:, None, None], 0, 1)  # experts, not networks
    names = ("embeddings", "distances", "trivial_distances", "norms", "domains")  # those of the first are taken
    bundles = [
        each.save(tmp_path / name)
        for name, each in (("a", world), ("b", replace(world, errors=worse, **{name: {} for name in names})))
    ]
    where = ("--bundle", bundles[0], "--against", bundles[1], "--out", tmp_path / "out", "--jobs", 1)
    result = run(selection.app, *where, "--part", "primary")
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"primary", "recipes"}
    assert (tmp_path / "out" / "primary.md").read_text().count("Experts by achille2019.") == 1
    assert "one task left out (primary)" in result.stdout and "(secondary)" in result.stdout
    assert "asymmetric against generic, taxa, half of the images: " in result.stdout
    rows = read_csv(tmp_path / "out" / "primary.csv")
    assert len(rows) == 2 * 2 * 4
    is_primary = [row["leave"] == "task" for row in rows]
    assert [row["p_holm"] != "" for row in rows] == is_primary
    about = {"shots": "5", "probe": "resnet34", "method": "robust", "family": "taxa", "leave": "dataset"}
    found = t2v.evaluate(world, ["asymmetric", "generic"], **about)
    gap = 100 * (found.outcomes["asymmetric"].errors - found.outcomes["generic"].errors).mean()
    keys = {"comparison": 1, "family": "taxa", "shots": 5, "leave": "dataset"}
    assert next(row for row in rows if keys.items() <= row.items())["gap"] == pytest.approx(gap, rel=1e-4)
    recipes = read_csv(tmp_path / "out" / "recipes.csv")
    everything = next(row for row in recipes if (row["shots"], row["kind"]) == ("half", "all"))
    assert everything["experts"] == 8
    assert everything["gap"] == pytest.approx(-10, abs=0.3) and everything["p"] == pytest.approx(2 / 2**8)
    assert everything["rho"] > 0.9


def test_what_cannot_be_compared_is_refused(world):
    with pytest.raises(t2v.errors.UsageError, match="built by the same plan"):
        share_embeddings(world, world.only(range(5)))
    found = t2v.evaluate(replace(world, embeddings={}, distances={}), ["asymmetric", "generic"], family="taxa")
    with pytest.raises(t2v.errors.DataError, match="lacks the data for \\('asymmetric': no symmetric distance"):
        primary.compare_choices(Setting(SPACE, "task", "taxa", "half"), found, None)
    with pytest.raises(t2v.errors.UsageError, match="have 0 experts of the same name"):
        primary.compare_recipes(world, world.only(range(15), [0, 1]))
