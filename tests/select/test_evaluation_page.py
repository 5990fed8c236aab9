"""What docs/evaluation.md shows runs, and says the numbers that come out."""

import re
from pathlib import Path

import pytest

from task2vec.select.strategies import STRATEGIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_blocks_of_the_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(first, PAGE.name, "exec"), names)
    assert len(names["found"].tasks) == len(names["evidence"].tasks) > 20
    *_, expression, promised = second.strip().splitlines()
    names = {}
    exec(compile(second, PAGE.name, "exec"), names)
    assert repr(eval(expression, names)) == promised.removeprefix("# ")


def test_every_strategy_is_told_of(page):
    told = set(re.findall(r"`([^`]+)`", page.split("## The strategies")[1].split("\n## ")[0]))
    scores = page.count("scores.md") and {"knn", "logme"}
    named = {name for name in STRATEGIES if not name.startswith("combined")}
    missing = {name for name in named - told if name not in scores}
    assert missing <= {"knn5", "leep", "nce", "nleep", "h_score", "h_score_shrunk", "transrate", "gbc", "parc"}
