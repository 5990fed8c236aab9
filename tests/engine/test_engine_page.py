"""What docs/engine.md shows runs: its blocks in order."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


def test_the_blocks_of_the_page_run(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block.replace("size=64", "size=32"), PAGE.name, "exec"), {})
    *tasks, a, b, c, d, e = capsys.readouterr().out.splitlines()
    assert [line.rsplit(maxsplit=1)[0] for line in tasks] == ["shapes", "cluttered shapes", "textures"]
    assert [a, b, c, d, e] == ["a 0", "a 1", "a 4", "a end", "b TypeError"]
