"""`task2vec tasks`: the tasks of published datasets and of your own folders and tables."""

import pytest

from tests.tasks.published import write_imaterialist


@pytest.mark.parametrize(("name", "dataset"), [("cub", "cub200"), ("deepfashion", "deepfashion")])
def test_a_published_dataset_is_recognized_by_its_files(call, read, published, name, dataset):
    report = read("tasks", published / name)
    assert report["dataset"] == dataset and len(report["tasks"]) == sum(report["kinds"].values())
    kind = next(iter(report["kinds"]))
    chosen = read("tasks", published / name, "--kind", kind, "--split", "train")
    assert {row["kind"] for row in chosen["tasks"]} == {kind} and list(chosen["images"]) == ["train"]
    shown = call("tasks", published / name).stdout
    assert report["tasks"][0]["name"] in shown and "task2vec embed" in shown and "--kind KIND" in shown


def test_labels_name_the_attributes_of_imaterialist(read, tmp_path):
    write_imaterialist(tmp_path)
    table = next(tmp_path.glob("*.csv"))
    assert "Black" in [row["name"] for row in read("tasks", tmp_path, "--labels", table)["tasks"]]


def test_a_folder_of_your_own_is_one_task_and_its_unreadable_images_are_named(refuse, read, photos, tmp_path):
    report = read("tasks", photos)
    assert report["kinds"] == {"folder": 1} and report["images"] == {"all": 16}
    (tmp_path / "table.csv").write_text("path,label\n" + "".join(f"{photos}/dark/{n}.png,{n % 2}\n" for n in range(4)))
    assert read("tasks", tmp_path / "table.csv", "--root", "/")["tasks"][0]["kind"] == "table"
    (tmp_path / "gone.csv").write_text(
        f"path,label\n{photos}/dark/0.png,0\n{photos}/bright/0.png,1\nnone.png,1\ngone.png,1\n"
    )
    refuse("none.png", "tasks", tmp_path / "gone.csv", "--root", "/", code=3)


def test_mistakes_have_their_exit_codes(refuse, published, monkeypatch):
    monkeypatch.chdir(published)
    refuse("does not exist", "tasks", "nowhere")
    refuse("no tasks of kind 'attribute'", "tasks", "cub", "--kind", "attribute")
    refuse("train", "tasks", "cub", "--as", "inaturalist", code=3)
    refuse("--path-column only applies to", "tasks", "cub", "--path-column", "x")
