"""What docs/library.md shows runs, and prints what it says."""

import re
from pathlib import Path

from task2vec import Library

PAGE = Path(__file__).resolve().parents[2] / "docs" / "library.md"


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], PAGE.name, "exec"), {})
    told = capsys.readouterr().out.splitlines()
    for line in (told[0], told[3], told[4]):
        assert f"# {line}" in blocks[0]
    assert told[1].startswith("digit parity 0.") and told[2].startswith("shapes 0.")
    with Library.open("mine") as mine:
        assert mine.task("digits").tags == ("sample",) and mine.errors()[0].error == 0.12


def test_every_command_is_on_the_page():
    from task2vec.cli.app import LIBRARY_COMMANDS

    text = PAGE.read_text(encoding="utf-8")
    for name in LIBRARY_COMMANDS:
        assert re.search(rf"\b{name}\b", text), name
