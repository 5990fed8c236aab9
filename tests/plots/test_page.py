"""The page as a file: whole, self-contained, and deaf to what strangers write into names."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from task2vec.atlas import TaskFacts, write_page
from task2vec.atlas.page import write_script_data
from task2vec.errors import ResourceError, UsageError
from tests.atlas.spaces import make_space

HOSTILE = [
    "</script><script>alert(1)", "<!--<script>", "]]>", '"><img src=x onerror=alert(1)>', "{{data}}{{script}}",
    "a\u2028b\u2029c", "\u202egnp.exe", "\x00\x1b[31m", "\udc80", "&lt;b&gt;", "__proto__", "日本語", "x" * 5000, "",
]  # fmt: skip


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and the text of the data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._is_data = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._is_data = ("id", "data") in attrs

    def handle_data(self, data):
        if self._is_data:
            self.data += data

    def handle_endtag(self, tag):
        self._is_data = False


def make_page(path, names, **options):
    distances, groups = make_space(len(names))
    places = np.random.default_rng(0).normal(size=(len(names), 2))
    page = write_page(places, names, path=path, distances=distances, **{"groups": groups, **options})
    return page.read_text(encoding="utf-8"), distances, places


def test_hostile_names_stay_inside_the_data(tmp_path):
    plain, _, _ = make_page(tmp_path / "plain.html", [f"n{number}" for number in range(len(HOSTILE))])
    text, _, _ = make_page(tmp_path / "hostile.html", HOSTILE, groups=HOSTILE[::-1], title=HOSTILE[0], note=HOSTILE[3])
    assert Tags(text).tags == Tags(plain).tags
    assert text.count("</script>") == 2
    assert "alert(1)</h1>" in text and "<img" not in text
    tasks = json.loads(Tags(text).data)["tasks"]
    assert tasks[0]["name"] == HOSTILE[0]
    assert tasks[4]["name"] == "{{data}}{{script}}"
    assert tasks[6]["name"] == "\N{REPLACEMENT CHARACTER}gnp.exe"
    assert max(len(task["name"]) for task in tasks) <= 200
    raw = text.split('id="data">')[1].split("</script>")[0]
    assert raw.isascii() and not set("<>&") & set(raw)


def test_nothing_on_it_points_elsewhere(tmp_path):
    text, _, _ = make_page(tmp_path / "map.html", ["a", "b", "c"])
    assert not re.search(r"https?:|//[a-z]+\.|url\(|import\(|fetch\(|XMLHttp|innerHTML|eval\(", text)
    policy = next(tag[1]["content"] for tag in Tags(text).tags if tag[1].get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
    assert [attrs["href"] for _, attrs in Tags(text).tags if "href" in attrs] == ["data:,"]
    assert not [tag for tag in Tags(text).tags if "src" in tag[1]]


def test_the_data_is_what_was_given(tmp_path):
    facts = [TaskFacts(12, 3, 0.25, 7.5), TaskFacts(error=float("nan"), norm=float("inf")), TaskFacts()]
    text, distances, places = make_page(tmp_path / "map.html", ["a", "b", "c"], facts=facts, placed=1)
    data = json.loads(Tags(text).data)
    np.testing.assert_allclose([[task["x"], task["y"]] for task in data["tasks"]], places, rtol=1e-5)
    assert [data["tasks"][0][key] for key in ("images", "classes", "error", "norm")] == [12, 3, 0.25, 7.5]
    assert [data["tasks"][1][key] for key in ("images", "classes", "error", "norm")] == [None] * 4
    assert ["placed" in task for task in data["tasks"]] == [False, False, True]
    for number, task in enumerate(data["tasks"]):
        order = sorted((other for other in range(3) if other != number), key=lambda other: distances[number, other])
        assert [near for near, _ in task["nearest"]] == order
        np.testing.assert_allclose([apart for _, apart in task["nearest"]], distances[number, order], rtol=1e-5)


def test_thousands_of_tasks_make_a_small_page(tmp_path):
    text, _, _ = make_page(tmp_path / "map.html", [f"task {number}" for number in range(1000)])
    assert len(text) < 500_000
    assert all(len(task["nearest"]) == 6 for task in json.loads(Tags(text).data)["tasks"])


def test_script_data_refuses_what_json_has_not():
    assert json.loads(write_script_data({"a<": ["\u2028&"]})) == {"a<": ["\u2028&"]}
    with pytest.raises(ValueError, match="JSON"):
        write_script_data(float("nan"))


def test_what_does_not_belong_together_is_refused(tmp_path):
    with pytest.raises(UsageError, match="1 facts"):
        make_page(tmp_path / "map.html", ["a", "b"], facts=[TaskFacts()])
    with pytest.raises(UsageError, match="shape"):
        write_page(np.eye(2), ["a"], path=tmp_path / "map.html", distances=np.zeros((1, 1)))
    with pytest.raises(ResourceError, match="nowhere"):
        make_page(tmp_path / "nowhere" / "map.html", ["a", "b"])
    assert list(tmp_path.iterdir()) == []
