"""Where things lie on this machine is not told, and short names of folders garble no sentence."""

from pathlib import Path

import pytest

from task2vec.web.advice import hide_file
from task2vec.web.problems import hide_places
from tests.web.serving import ask, fill, serving


def test_folders_that_are_named_by_a_dot_garble_nothing(tmp_path, monkeypatch):
    fill(tmp_path / "tasks", 2)
    monkeypatch.chdir(tmp_path / "tasks")
    with serving(Path(), roots=[Path()]) as client:
        assert ask(client, "/status")["library"] == "tasks" and ask(client, "/status")["roots"][0]["name"] == "tasks"
        names = client.app_state.names
        assert all(Path(place).is_absolute() for place in names) and client.app_state.jobs.library.is_absolute()
        place = (tmp_path / "tasks").resolve() / "cats"
        assert hide_places(f"'{place}' is empty. Add 1.5 images.", names) == "'tasks/cats' is empty. Add 1.5 images."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cannot read /usr/lib/python3/x.so: no", "cannot read x.so: no"),
        ("'/home/ada lovelace/cats' is empty", "'cats' is empty"),
        ('"C:\\Users\\ada\\x.png" is broken', '"x.png" is broken'),
        ("in /etc/ there is none", "in etc there is none"),
        (
            "see https://example.org/a/b and/or 3/4 of photos/cats",
            "see https://example.org/a/b and/or 3/4 of photos/cats",
        ),
        ("'/data/photos/a b' and /data/photos-2/c", "'my photos/a b' and c"),
    ],
)
def test_of_paths_the_last_part_is_told(text, told):
    assert hide_places(text, {"/data/photos": "my photos", "/": "root"}) == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('t2v.load_expert("/home/ada/a.safetensors")', 't2v.load_expert("a.safetensors")'),
        ('t2v.load_expert("C:\\\\ada\\\\a.safetensors")', 't2v.load_expert("a.safetensors")'),
        ('t2v.load_expert("/x/\\"); f(\\"")', 't2v.load_expert("\\"); f(\\"")'),
        ('t2v.load_probe("torchvision:resnet18")', 't2v.load_probe("torchvision:resnet18")'),
        ("train it: task2vec train-expert FOLDER", "train it: task2vec train-expert FOLDER"),
    ],
)
def test_the_line_that_loads_a_file_tells_its_name_alone(line, told):
    assert hide_file(line) == told
