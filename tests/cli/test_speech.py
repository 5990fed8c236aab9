"""Words of strangers stay words; stages add up; places are sound."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.cli.place import default_place
from task2vec.cli.speech import print_facts, print_json
from task2vec.cli.stages import group_layers
from task2vec.text import printable

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_nothing_invisible_is_left(text):
    shown = printable(text)
    assert all(unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp") for letter in shown)
    assert "\u202e" not in shown
    shown.encode("utf-8")


@pytest.mark.parametrize("text", ["plain", "日本語", "été", "می‌خواهم", "👩‍🔬", "[bold]x[/bold]"])
def test_ordinary_writing_is_untouched(text):
    assert printable(text) == text


def test_markup_is_printed_literally(capsys):
    print_facts([("task", "[red]x[/red] :smile: [link=file:///etc]y[/link]")])
    assert "[red]x[/red] :smile: [link=file:///etc]y[/link]" in capsys.readouterr().out


def test_json_takes_what_numpy_gives(capsys):
    print_json({"norm": np.float64(0.5), "rows": np.eye(2), "path": Path("a"), "name": "\udc80\x1b"})
    assert json.loads(capsys.readouterr().out) == {
        "norm": 0.5,
        "rows": [[1, 0], [0, 1]],
        "path": "a",
        "name": "\udc80\x1b",
    }


@given(ANY_TEXT)
def test_a_default_place_is_one_file_in_this_folder(name):
    place = default_place(name, None)
    assert place.parent == Path()
    assert place.name.endswith(".t2v.safetensors")
    assert not place.name.startswith(".")


def test_places(tmp_path):
    assert default_place("a/b", tmp_path) == tmp_path / "a_b.t2v.safetensors"
    assert default_place("a", tmp_path / "x") == tmp_path / "x"


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-c]\.[0-9]{1,2}\.[x-z]|features\.[0-9]{1,2}|fc", fullmatch=True), st.just(3)),
        min_size=1,
    )
)
def test_stages_are_few_and_lose_no_filter(layers):
    stages = group_layers(layers)
    assert 1 <= len(stages) <= 14
    assert sum(filters for _, filters in stages) == 3 * len(layers)
