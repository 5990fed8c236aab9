"""`task2vec tasks` and `task2vec embed --task`: published datasets on the command line."""

import json
import shutil

import pytest

import task2vec
from tests.command import SMALL, run_command
from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist, write_inaturalist


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """One small dataset of each kind, by its name."""
    root = tmp_path_factory.mktemp("published")
    make_cub(root / "cub200" / "CUB_200_2011")
    make_deepfashion(root / "deepfashion")
    write_inaturalist(root / "inaturalist")
    write_inaturalist(root / "mini", 2021, mini=True)
    write_imaterialist(root / "imaterialist")
    return root


def read_json(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def find_row(text, *words):
    """The one line of a table that has all the words, as words."""
    (line,) = (line for line in text.splitlines() if all(word in line.split() for word in words))
    return line.split()


@pytest.mark.parametrize(
    ("name", "dataset", "kinds"),
    [
        ("cub200", "cub200", {"order": 2, "family": 2}),
        ("inaturalist", "inaturalist2018", {"order": 2, "class": 2, "family": 1}),
        ("mini", "inaturalist2021 mini", {"order": 2, "class": 2, "family": 1}),
        ("imaterialist", "imaterialist2018", {"attribute": 6, "attribute group": 4}),
        ("deepfashion", "deepfashion", {"attribute": 9, "attribute group": 5, "category": 2}),
    ],
)
def test_every_layout_is_known_by_its_files(call, published, name, dataset, kinds):
    report = read_json(call("tasks", published / name, "--json"))
    assert (report["dataset"], report["kinds"]) == (dataset, kinds)
    assert len(report["tasks"]) == sum(kinds.values())
    assert {row["kind"] for row in report["tasks"]} == set(kinds)


def test_a_table_of_tasks(call, published):
    result = call("tasks", published / "cub200")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "cub200: 24 images (train 16, test 8); tasks: 2 order, 2 family"
    assert find_row(result.stdout, "Passeriformes", "order") == ["Passeriformes", "order", "Aves", "4", "8", "4"]
    assert find_row(result.stdout, "Corvidae") == ["Corvidae", "family", "Passeriformes", "2", "4", "2"]
    assert "task2vec embed" in result.stdout and "--task NAME" in result.stdout


def test_kinds_and_limits(call, published):
    only = call("tasks", published / "deepfashion", "--kind", "attribute", "--limit", 2)
    assert only.exit_code == 0, only.stderr
    assert find_row(only.stdout, "a-line")[:3] == ["a-line", "attribute", "shape"]
    assert "linen" not in only.stdout and "upper-body" not in only.stdout
    assert "and 7 more; --limit 9 shows them" in only.stdout
    report = read_json(call("tasks", published / "deepfashion", "--kind", "attribute", "--limit", 2, "--json"))
    assert [row["name"] for row in report["tasks"]] == ["a-line", "abstract chevron print"]
    refused = call("tasks", published / "deepfashion", "--kind", "order")
    assert refused.exit_code == 2 and "no tasks of kind 'order'" in refused.stderr
    assert call("tasks", published / "deepfashion", "--limit", 0).exit_code == 2


def test_positive_images_are_told(call, published):
    report = read_json(call("tasks", published / "imaterialist", "--json"))
    (black,) = (row for row in report["tasks"] if row["name"] == "Black")
    assert (black["images"], black["positives"]) == ({"train": 5, "val": 3}, {"train": 2, "val": 1})
    assert find_row(call("tasks", published / "imaterialist").stdout, "Black")[-2:] == ["3", "3"]


def test_your_own_folder_and_table_are_one_task(call, photos, tmp_path):
    report = read_json(call("tasks", photos, "--json"))
    assert report["tasks"][0] | {"name": ""} == {
        "name": "",
        "kind": "folder",
        "group": "",
        "classes": 2,
        "images": {"all": 16},
        "positives": {},
        "is_multilabel": False,
    }
    table = tmp_path / "t.csv"
    table.write_text("path,label\ndark/0.png,a\nbright/0.png,b\n")
    for name in ("dark", "bright"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes((photos / name / "0.png").read_bytes())
    result = call("tasks", table)
    assert result.stdout.splitlines()[0] == "t: 2 images; tasks: 1 table"
    assert find_row(result.stdout, "t") == ["t", "table", "2", "2"]
    assert call("tasks", photos, "--kind", "order").exit_code == 2


def test_unreadable_images_of_your_own_are_named(call, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "pets" / "train")
    torn = tmp_path / "pets" / "train" / "dark" / "torn.png"
    torn.write_bytes(b"torn")
    refused = call("tasks", tmp_path / "pets", "--split", "train")
    assert refused.exit_code == 3 and "--allow-bad" in refused.stderr and refused.stdout == ""
    assert f"unreadable: {torn}: " in refused.stderr
    result = call("tasks", tmp_path / "pets", "--split", "train", "--allow-bad")
    assert result.exit_code == 0 and f"unreadable: {torn}: " in result.stderr
    assert find_row(result.stdout, "(train)") == ["pets", "(train)", "folder", "2", "16"]
    report = read_json(call("tasks", tmp_path / "pets", "--split", "train", "--allow-bad", "--json"))
    assert [bad["path"] for bad in report["bad"]] == ["dark/torn.png"]


def test_a_table_of_your_own_with_its_columns(call, photos, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("file,kind,note\ndark/0.png,a,x\nbright/0.png,b,y\ngone.png,b,y\n")
    options = ("--path-column", "file", "--label-column", "kind", "--root", photos)
    result = call("tasks", table, *options, "--allow-bad")
    assert result.exit_code == 0, result.stderr
    assert find_row(result.stdout, "t") == ["t", "table", "2", "2"]
    assert f"unreadable: {photos / 'gone.png'}: there is no such file" in result.stderr
    for wrong in (("--split", "train"), ("--as", "cub200"), ("--labels", table)):
        refused = call("tasks", table, *options, *wrong)
        assert refused.exit_code == 2 and f"{wrong[0]} cannot be meant" in refused.stderr
    refused = call("tasks", photos, "--path-column", "file")
    assert refused.exit_code == 2 and "--path-column cannot be meant" in refused.stderr


def test_a_split_of_a_published_dataset(call, published):
    report = read_json(call("tasks", published / "imaterialist", "--split", "val", "--json"))
    (black,) = (row for row in report["tasks"] if row["name"] == "Black")
    assert report["images"] == {"val": 3} and (black["images"], black["positives"]) == ({"val": 3}, {"val": 1})
    refused = call("tasks", published / "imaterialist", "--split", "test")
    assert refused.exit_code == 2 and "no split 'test'" in refused.stderr
    refused = call("tasks", published / "imaterialist", "--root", published)
    assert refused.exit_code == 2 and "--root cannot be meant" in refused.stderr


@pytest.mark.parametrize("name", ["cub200", "imaterialist", "deepfashion", "inaturalist"])
@pytest.mark.parametrize("columns", [80, 40])
def test_it_fits_where_it_is_shown(published, name, columns, tmp_path):
    env = {"COLUMNS": str(columns), "NO_COLOR": "1", "XDG_CACHE_HOME": str(tmp_path)}
    result = run_command("tasks", name, cwd=published, **env)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if not line.startswith("  task2vec ")]
    assert max(map(len, rows)) <= columns
    assert "\x1b" not in result.stdout
    # No name is broken, and what had to go is told.
    names = {"cub200": "Passeriformes", "imaterialist": "Stockings,"}
    names |= {"deepfashion": "chevron", "inaturalist": "Agaricales"}
    assert names[name] in {word for row in rows for word in row.split()}
    assert ("no room for group, kind" in result.stdout) == (columns == 40)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "no dataset was named"),
        (["nowhere"], 2, "'nowhere' is not there"),
        (["empty"], 3, "no class folders"),
        (["empty", "--as", "cub200"], 3, "not CUB-200-2011"),
        (["empty", "--as", "cifar"], 2, "cifar"),
        (["both"], 2, "files of cub200 and deepfashion"),
    ],
)
def test_mistakes_have_their_exit_codes(call, tmp_path, monkeypatch, args, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    make_cub(tmp_path / "both")
    make_deepfashion(tmp_path / "both")
    result = call("tasks", *args)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert result.stderr.lower().count("error: ") == 1 and len(result.stderr) < 600


@pytest.mark.parametrize("split", [None, "train"])
def test_a_task_of_a_catalogue_is_embedded(call, published, tmp_path, split):
    options = [] if split is None else ["--split", split]
    out = tmp_path / "x.t2v.safetensors"
    result = call("embed", published / "cub200", "--task", "Cuculiformes", *options, "--out", out, "--json", *SMALL)
    report = read_json(result)
    called = "cub200: Cuculiformes" if split is None else "cub200: Cuculiformes (train)"
    assert report["task"] == called
    assert report["counts"]["images"] == (9 if split is None else 6) and report["counts"]["classes"] == 3
    assert task2vec.load_embedding(out).task == called


def test_the_paper_s_reading_of_cub_can_be_asked_for(call, published):
    own = read_json(call("tasks", published / "cub200", "--json"))
    theirs = read_json(call("tasks", published / "cub200", "--as", "cub200-paper", "--json"))
    assert theirs["dataset"] == "cub200-paper"
    assert "Passeridae" in {row["name"] for row in theirs["tasks"]} - {row["name"] for row in own["tasks"]}


def test_labels_without_names_are_warned_of(call, published, tmp_path):
    folder = write_imaterialist(tmp_path / "nameless", with_map=False)
    words = "warning: labels are named by their numbers"
    for args in (["tasks", folder], ["embed", folder, "--task", "17", "--out", tmp_path / "x", *SMALL]):
        result = call(*args)
        assert result.exit_code == 0, result.stderr
        assert words in result.stderr and "--labels" in result.stderr
    table = published / "imaterialist" / "iMat_fashion_2018_label_map_228.csv"
    assert words not in call("tasks", folder, "--labels", table).stderr


def test_draws_are_not_gradients(call, published, tmp_path):
    options = ("--task", "abstract", "--draw", 8, "--images", 5, "--size", 32, "--name", "mine", "--json")
    report = read_json(call("embed", published / "deepfashion", *options, "--out", tmp_path / "x"))
    assert (report["task"], report["counts"]["images"], report["counts"]["backpropagated"]) == ("mine", 8, 5)
    assert report["settings"]["images"] == 5
    other = read_json(call("embed", published / "deepfashion", *options, "--out", tmp_path / "y", "--seed", 9))
    assert other["fingerprints"]["task"] != report["fingerprints"]["task"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["cub200", "--task", "Corvidea"], 2, "Did you mean 'Corvidae'"),
        (["cub200", "--task", "Zzz"], 2, "task2vec tasks"),
        (["cub200", "--task", "Corvidae", "--split", "val"], 2, "no split 'val'"),
        (["cub200", "--task", "Corvidae", "--draw", "1"], 2, "images=1 (--max-images) must be an integer"),
        (["cub200", "--task", "Corvidae", "--as", "deepfashion"], 3, "not DeepFashion"),
        (["cub200", "--task", "Corvidae", "--root", "x"], 2, "--root cannot be meant"),
        (["cub200", "--split", "train", "--as", "cub200"], 2, "--as, --split cannot be meant"),
        (["cub200/CUB_200_2011"], 2, "is cub200, a dataset of many tasks, and it is not said which is meant"),
        (["cub200", "--split", "train"], 2, "is cub200, a dataset of many tasks"),
        (["imaterialist"], 2, "is imaterialist, a dataset of many tasks"),
        (["imaterialist", "--task", "Black", "--labels", "nowhere.csv"], 2, "nowhere.csv is not a file"),
        (["deepfashion", "--task", "texture", "--kind", "attribute"], 2, "no task 'texture' of kind 'attribute'"),
        (["nowhere", "--task", "x"], 2, "'nowhere' is not there"),
    ],
)
def test_mistakes_in_embedding_a_task(call, published, monkeypatch, args, code, words):
    monkeypatch.chdir(published)
    result = call("embed", *args)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert result.stderr.lower().count("error: ") == 1 and len(result.stderr) < 600
