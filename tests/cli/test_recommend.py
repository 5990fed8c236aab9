"""`task2vec recommend`: what is measured and printed, what is written, and what is refused."""

import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import task2vec
from task2vec.errors import UsageError, WeightsNotFoundError
from task2vec.select import Candidate, evidence
from task2vec.select import candidates as listing
from task2vec.select import recommend as room
from tests.cli.material import call, make, read, read_csv, refuse
from tests.command import run_command
from tests.tiny_probe import make_tiny

LITE0 = "tf_efficientnet_lite0.in1k"


@pytest.fixture
def known(monkeypatch):
    """Three candidates, the last of which is not on this machine, with small networks behind them."""
    listed = [
        Candidate("small", location="timm:test_resnet", params=1000, gmacs=0.1, license="mit", is_here=True),
        Candidate("large", location="timm:test_vit", params=9000, gmacs=0.9, license="apache-2.0", is_here=True),
        Candidate("far", location="timm:test_convnext", params=5000, gmacs=0.5, megabytes=321.0),
    ]

    def load(candidate, *, download=False, **_):
        if candidate.name == "far" and not download:
            raise WeightsNotFoundError("the weights of 'far' are not on this machine.")
        return replace(make_tiny(len(candidate.name)), name=candidate.name)

    def list_known(models=None, *, library=None, **_):
        return tuple(each for each in listed if models is None or each.name in models)

    for place in (room, listing):
        monkeypatch.setattr(place, "list_candidates", list_known)
    monkeypatch.setattr(room, "load_candidate", load)
    return listed


def test_a_folder_is_measured_and_the_errors_are_saved(photos, known, own_library, tmp_path):
    out = tmp_path / "models.csv"
    shown = call("recommend", photos, "--out", out)
    assert shown.exit_code == 0, shown.stderr
    assert "Start from small" in shown.stdout and "measured: 2 of 2 models" in shown.stdout
    assert "1 candidate not on this machine (far)" in shown.stdout and "321 MB" in shown.stdout
    assert f"written: {out}" in shown.stdout and [row["model"] for row in read_csv(out)] == ["small", "large"]
    refuse("--force", "recommend", photos, "--out", out)
    report = read("recommend", photos)
    assert report["choice"] == "small" and report["library"] == own_library and report["measured_images"] == 16
    assert all(row["seconds"] is None and 0 <= row["low"] <= row["error"] for row in report["rows"])
    with task2vec.Library.open(own_library) as library:
        assert {error.expert for error in library.errors()} == {"small", "large"}
    assert "2 of them before" in call("recommend", photos).stdout


def test_the_name_of_a_task_in_the_library_measures_its_images(photos, known, own_library, monkeypatch, tmp_path):
    assert call("recommend", photos).exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert read("recommend", "photos")["choice"] == "small"
    (tmp_path / "photos").symlink_to(photos)  # a folder of that name is taken, for it has the images
    assert read("recommend", "photos", "--model", "small")["rows"][0]["seconds"] is None
    refuse("no folder or file 'nothing'", "recommend", "nothing")
    refuse("no folder or file 'nothing'", "recommend", "nothing", "--no-library")


def test_nothing_is_kept_without_a_library(photos, known, own_library):
    report = read("recommend", photos, "--no-library", "--prefer", "error")
    assert report["library"] is None and report["prefer"] == "error" and not Path(own_library).exists()
    assert report["choice"] == report["rows"][0]["model"]


def test_weights_are_downloaded_if_that_is_asked_for(photos, known):
    shown = call("recommend", photos, "--download")
    assert shown.exit_code == 0 and "downloading what is not on this machine of 1 model: 321 MB at most" in shown.stderr
    assert "measured: 3 of 3 models" in shown.stdout
    assert "downloading" not in call("recommend", photos, "--offline").stderr
    refuse("contradict each other", "recommend", photos, "--download", "--offline")


def test_a_model_that_fails_is_a_row_and_the_exit_code_tells_whether_any_was_measured(photos, known):
    report = read("recommend", photos, "--model", "small, far")
    assert [row["failure"] != "" for row in report["rows"]] == [False, True]
    only = call("recommend", photos, "--model", "far")
    assert only.exit_code == 5 and "far could not be measured" in only.stdout and "no model could be" in only.stderr


def test_an_interrupt_prints_what_is_known_and_has_its_code(photos, known, monkeypatch):
    load = room.load_candidate

    def stop(candidate, **options):
        if candidate.name == "large":
            raise KeyboardInterrupt
        return load(candidate, **options)

    order = [row["model"] for row in read("recommend", photos, "--no-measure", "--no-library")["rows"]]
    monkeypatch.setattr(room, "load_candidate", stop)
    result = call("recommend", photos)
    assert result.exit_code == 130 and "interrupted" in result.stderr
    if order.index("small") < order.index("large"):
        assert "Start from small" in result.stdout and "saved. Run the same command again" in result.stderr


def test_no_measure_lists_the_order_with_reasons_and_no_error(photos, known, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "embed_like", lambda *_, **__: pytest.fail("nothing is known of these candidates"))
    report = read("recommend", photos, "--no-measure")
    assert report["choice"] is None and report["strategy"] == "proposals" and len(report["rows"]) == 3
    assert all(row["error"] is None and row["reason"] for row in report["rows"])
    assert any(f"task2vec recommend {photos}" in note for note in report["notes"])
    saved = (
        task2vec.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0].save(tmp_path / "one.t2v.safetensors")
    )
    for options in ((), ("--no-measure",)):
        assert len(read("recommend", saved, "--no-library", *options)["neighbours"]) == 3
    other = make("other", 1).save(tmp_path / "other.t2v.safetensors")
    assert "All known tasks count alike" in read("recommend", other, "--no-library")["notes"][0]


def test_tables_and_splits_are_read_as_they_are_named(photos, known, tmp_path):
    rows = ["picture,kind,other"] + [f"{file},{file.parent.name},x" for file in sorted(photos.rglob("*.*"))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows))
    report = read(
        "recommend", table, "--path-column", "picture", "--label-columns", "kind", "--root", "/", "--no-library"
    )
    assert report["task"] == "table" and report["images"] == 16
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "splits" / split)
    shown = call("recommend", tmp_path / "splits", "--no-library")
    assert "has splits (train, val): train is used" in shown.stderr and "(train)" in shown.stdout
    named = call("recommend", tmp_path / "splits", "--split", "val", "--no-library")
    assert "splits" not in named.stderr and "(val)" in named.stdout


def test_the_script_of_the_choice_is_written(photos, known, tmp_path):
    script = tmp_path / "train.py"
    report = read("recommend", photos, "--script", script)
    assert report["script"] == str(script) and "create_model('test_resnet'" in script.read_text()
    assert "OneCycleLR" not in script.read_text()
    refuse("--force", "recommend", photos, "--script", script)
    assert call("recommend", photos, "--script", script, "--force", "--whole-network").exit_code == 0
    assert "OneCycleLR" in script.read_text()
    refuse("Add --script FILE", "recommend", photos, "--whole-network")


def test_mistakes_are_reported(photos, tmp_path):
    refuse("is not a time", "recommend", photos, "--budget", "soon")
    refuse("not a number of parameters", "recommend", photos, "--max-params", "many")
    refuse("is not a licence of any model", "recommend", photos, "--license", "free")
    refuse("Add --no-measure", "recommend", photos, "--strategy", "asymmetric")
    refuse("no strategy called 'magic'", "recommend", photos, "--no-measure", "--strategy", "magic", "--model", LITE0)
    refuse("-k", "recommend", photos, "-k", "0")
    refuse("Did you mean resnet50.a1_in1k", "recommend", photos, "--model", "resnet5O.a1_in1k")


def test_the_former_option_pool_is_model_timm(photos, monkeypatch):
    asked = []

    def list_nothing(models=None, **_):
        asked.append(models)
        raise UsageError("nothing is left")

    monkeypatch.setattr(listing, "list_candidates", list_nothing)
    for words in (("--model", "timm"), ("--pool", "timm")):
        refuse("nothing is left", "recommend", photos, *words)
    assert asked == ["timm", "timm"]
    refuse("both say which models", "recommend", photos, "--model", LITE0, "--pool", "timm")
    assert "--pool" not in call("recommend", "--help").stdout


def test_an_unknown_model_is_refused_before_torch_is_imported(tmp_path):
    code = "import sys; from task2vec.cli import main\ntry: main()\n"
    code += "finally: print(sorted({'torch', 'timm'} & {*sys.modules}))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = run_command("recommend", ".", "--model", "resnet5O", python=code, cwd=tmp_path)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == 2 and "Did you mean" in done.stderr and done.stdout == "[]\n"
    assert seconds < 1.5
