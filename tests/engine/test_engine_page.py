"""What docs/engine.md shows runs: its blocks in order."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


def test_the_blocks_of_the_page_run(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        quick = block.replace("size=64", "size=32").replace("[2:5]", "[2:3]")
        exec(compile(quick, PAGE.name, "exec"), {})
    shapes, *told = capsys.readouterr().out.splitlines()
    assert shapes.split()[0] == "shapes" and float(shapes.split()[1]) > 0
    assert told == ["a 0", "a 1", "a 4", "a end", "b TypeError"]
