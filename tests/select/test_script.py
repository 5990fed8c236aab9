"""The script runs to its end without task2vec, on folders, tables, splits and experts, and gives the right error."""

import os
import re
import subprocess
import sys

import pytest
import timm
from safetensors.torch import save_file

import task2vec as t2v
from task2vec.errors import UsageError
from task2vec.probe.weights import is_offline_package_installed
from task2vec.select import measure, script
from task2vec.select.recommendation import Recommendation, Row, format_interval
from tests.hub import serving_hub, use_hub
from tests.probe.conftest import random_timm
from tests.tiny_probe import make_tiny

LITE = Row(1, "lite", 0.1, 0.05, 0.2, is_choice=True, location="timm:tf_efficientnet_lite0")
SMALL = Row(1, "small", location="timm:test_resnet.r160_in1k", is_choice=True)
MOST_LINES = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos of four easy classes as files, ten of each."""
    root = tmp_path_factory.mktemp("images") / 'it\'s "art"'
    write(t2v.sample_tasks(images_per_task=40)[2], root)
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file with random weights of a small network."""
    file = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), file)
    return file


def write(task, root):
    for number, target in enumerate(task.targets.tolist()):
        place = root / task.classes[target]
        place.mkdir(parents=True, exist_ok=True)
        task.images.load(number).save(place / f"{number}.png")


def advise(task, row=LITE):
    return Recommendation(task.name, (row,), row.model, images=len(task), data=task)


def run(program, *options, cwd, **more):
    """The output of a script in a process that has no task2vec, no network and one thread."""
    text = program.read_text()
    assert len(text.splitlines()) <= MOST_LINES and max(map(len, text.splitlines())) <= 400
    assert "import task2vec" not in text
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **more}
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", program, *options], cwd=cwd, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read_error(output):
    return float(re.search(r"validation error (\S+)%", output)[1])


needs_package = pytest.mark.skipif(
    not is_offline_package_installed("tf_efficientnet_lite0"), reason="the package with the weights is not installed"
)


@needs_package
def test_the_program_of_a_recommendation_has_the_error_that_was_measured(folder, tmp_path):
    advice = t2v.recommend(folder, models=["tf_efficientnet_lite0"])
    program = advice.script(tmp_path / "train.py")
    output = run(program, "--out", tmp_path / "model.pt", cwd=tmp_path)
    assert "40 images in 5 folds" in output
    assert 100 * advice.rows[0].low - 0.01 <= read_error(output) <= 100 * advice.rows[0].high + 0.01
    assert (tmp_path / "model.pt").stat().st_size > 10_000_000
    assert f"# task2vec measured a {format_interval(advice.rows[0])}" in program.read_text()


@pytest.mark.long
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_weights_are_fetched_by_the_recommendation_and_by_its_program(folder, tmp_path, monkeypatch):
    name = "test_resnet.r160_in1k"
    with serving_hub() as hub:
        use_hub(hub, tmp_path / "cache", monkeypatch)
        hub.put(name, random_timm(name))
        advice = t2v.recommend(folder, models=[name], download=True)
        assert advice.choice == name and advice.rows[0].is_here is False
        program = advice.script(tmp_path / "train.py")
        there = {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(tmp_path / "other"), "HF_HUB_OFFLINE": "0"}
        before = len(hub.requests)
        output = run(program, cwd=tmp_path, **there)
        assert len(hub.requests) > before
    assert 100 * advice.rows[0].low - 0.01 <= read_error(output) <= 100 * advice.rows[0].high + 0.01


@pytest.mark.long
def test_all_weights_are_trained_and_the_split_of_the_user_is_kept(folder, weights, tmp_path):
    task = t2v.to_task(folder)
    train, held_out = task.split(test=0.3)
    for part, name in ((train, "train"), (held_out, "val")):
        write(part, tmp_path / "images" / name)
    advice = advise(t2v.read_folder(tmp_path / "images", split="train"), SMALL)
    for whole in (False, True):
        program = advice.script(tmp_path / "train.py", whole_network=whole)
        output = run(program, "--weights", weights, cwd=tmp_path)
        assert f"({len(held_out)} images)" in output and ("whole network" in output) == whole
        assert read_error(output) <= 100


@pytest.mark.long
def test_a_table_is_read_by_its_own_columns(folder, weights, tmp_path):
    task = t2v.to_task(folder)
    rows = ["kind;photo;note;split"]
    for number, target in enumerate(task.targets.tolist()):
        place = f"{task.classes[target]}/{task.images.name(number).split('/')[1]}"
        rows.append(f"{task.classes[target]};{place};x{number % 3};{'test' if number % 4 == 0 else 'train'}")
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(rows))
    read = t2v.read_table(table, root=folder, path_column="photo", label_columns="kind")
    output = run(advise(read, SMALL).script(tmp_path / "train.py"), "--weights", weights, cwd=tmp_path)
    assert "(10 images)" in output
    without = t2v.read_table(table, root=folder, path_column="photo", label_columns="note")
    assert "row['note']" in advise(without, SMALL).script(tmp_path / "train.py").read_text()


@pytest.mark.long
def test_attributes_of_a_table_have_answers_each(folder, weights, tmp_path):
    files = sorted(folder.rglob("*.png"))
    lines = ["image,is_even,is_early"] + [f"{file},{at % 2},{int(at < 15)}" for at, file in enumerate(files)]
    (tmp_path / "attributes.csv").write_text("\n".join(lines))
    task = t2v.read_table(tmp_path / "attributes.csv", root="/")
    assert task.is_multilabel
    for whole in (False, True):
        program = advise(task, SMALL).script(tmp_path / "train.py", whole_network=whole)
        assert read_error(run(program, "--weights", weights, cwd=tmp_path)) < 100


def test_a_table_without_a_header_is_refused(folder, tmp_path):
    rows = "".join(f"{file},{file.parent.name}\n" for file in sorted(folder.rglob("*.png")))
    (tmp_path / "plain.csv").write_text(rows)
    with pytest.raises(UsageError, match="with a header"):
        advise(t2v.to_task(tmp_path / "plain.csv"), SMALL).script(tmp_path / "train.py")


def test_an_expert_is_loaded_from_its_file(folder, weights, tmp_path):
    task = t2v.to_task(folder)
    base = t2v.load_probe("test_resnet.r160_in1k", weights=weights, size=64)
    recipe = t2v.Recipe("quick", epochs=1, draws=8, batch=4)
    trained = t2v.train_expert(task, base, recipe=recipe, out=tmp_path / "art.expert.safetensors")
    program = advise(task, Row(1, "art", location=str(trained.path), is_choice=True)).script(tmp_path / "train.py")
    assert "(3, 64, 64)" in program.read_text()
    assert read_error(run(program, cwd=tmp_path)) <= 100
    own = t2v.train_expert(task, make_tiny(), recipe=recipe, out=tmp_path / "own.expert.safetensors")
    with pytest.raises(UsageError, match="could not load it"):
        advise(task, Row(1, "own", location=str(own.path), is_choice=True)).script(tmp_path / "train.py")


def test_networks_of_torchvision_are_loaded_by_their_own_recipe(folder, tmp_path):
    import torch
    import torchvision

    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "resnet18.pth")
    row = Row(1, "r", location="torchvision:resnet18.IMAGENET1K_V1", is_choice=True)
    program = advise(t2v.to_task(folder), row).script(tmp_path / "train.py")
    assert read_error(run(program, "--weights", tmp_path / "resnet18.pth", cwd=tmp_path)) <= 100


def test_what_is_not_in_the_task_is_not_read(folder, tmp_path):
    root = tmp_path / "some"
    write(t2v.to_task(folder), root)
    kind = sorted(root.iterdir())[0]
    (kind / "broken.png").write_bytes(b"no image")
    task = t2v.to_task(root)
    text = advise(task).script(tmp_path / "train.py").read_text()
    assert f"IGNORED = ['{kind.name}/broken.png']" in text
    chosen = task.select(task.classes[:2])
    assert "IGNORED = []" in advise(chosen).script(tmp_path / "train.py").read_text().replace(
        f"['{kind.name}/broken.png']", "[]"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda task: t2v.sample_tasks(images_per_task=40)[2], "not those of a folder"),
        (lambda task: task.one_vs_rest()[0], "are not the folders"),
    ],
)
def test_a_task_that_a_script_could_not_read_is_refused(make, words, folder, tmp_path):
    with pytest.raises(UsageError, match=words):
        advise(make(t2v.to_task(folder))).script(tmp_path / "train.py")
    assert not (tmp_path / "train.py").exists()


def test_a_model_that_a_script_could_not_load_is_refused(folder, tmp_path):
    task = t2v.to_task(folder)
    with pytest.raises(UsageError, match="'mine' is not a network of timm"):
        advise(task, Row(1, "mine", is_choice=True)).script(tmp_path / "train.py")
    with pytest.raises(UsageError, match="there is no model"):
        Recommendation("x", (), None, data=task).script(tmp_path / "train.py")


def test_the_penalty_is_that_of_measuring():
    assert script._PENALTY == measure.PENALTY
