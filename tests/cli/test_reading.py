"""How commands read data: what they found is printed, and an option that applies to nothing is refused."""

from pathlib import Path

import pytest

from tests.cli.material import call, read, refuse
from tests.tasks.pictures import make_folder


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "pets", cat=3, dog=3)
    make_folder(tmp_path / "sites", **{f"{site}/{kind}": 2 for site in ("a", "b") for kind in ("cat", "dog")})
    make_folder(tmp_path / "flat", **{".": 4})
    Path("flat.csv").write_text("id;kind\n000;cat\n001;dog\n002;cat\n003;dog\n")
    Path("labels.txt").write_text("".join(f"{path} {path.parent.name}\n" for path in sorted(Path("pets").glob("*/*"))))


def test_what_was_found_in_a_table_is_printed():
    words = "no header, separated by spaces, paths in column 1, labels in column 2"
    assert f"reading labels.txt: {words}\n" in call("tasks", "labels.txt").stderr
    words = "labels of the table '../flat.csv', separated by semicolons, paths in column 'id', labels in column 'kind'"
    assert f"reading flat: {words}\n" in call("tasks", "flat").stderr
    assert "reading" not in call("tasks", "pets").stderr
    assert read("tasks", "labels.txt")["tasks"][0]["images"] == {"all": 6}


def test_folders_above_the_classes_are_asked_about():
    words = (
        "By the first folder: 2 classes, 'a' (4 images), 'b' (4 images): label_level=1 (--label-level 1). By the second"
    )
    for command in (
        ("tasks", "sites"),
        ("report", "sites"),
        ("recommend", "sites", "--offline"),
        ("diversity", "sites"),
    ):
        result = call(*command)
        assert result.exit_code == 3 and words in result.stderr, result.output
    assert read("tasks", "sites", "--label-level", "2", "--group-level", "1")["tasks"][0]["classes"] == 2


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("--label-level only applies to a folder", ("labels.txt", "--label-level", "1")),
        ("--separator only applies to a table", ("pets", "--separator", "tab")),
        ("--no-header only applies to a table", ("pets", "--no-header")),
        ("--path-column only applies to a table or a Hugging Face dataset", ("pets", "--path-column", "x")),
        ("none names the images of", ("pets", "--label-columns", "x")),
        ("is no regular expression", ("pets", "--group", "(")),
        ("matches 3 of 6 paths", ("labels.txt", "--group", "(cat)")),
    ],
)
def test_an_option_that_applies_to_nothing_is_refused(words, args):
    for command in ("tasks", "report", "recommend"):
        result = call(command, *args)
        assert result.exit_code == 2 and words in result.stderr, result.output
    refuse("--group only applies to a folder or a table", "embed", "pets", "--as", "cub200", "--group", "x")
