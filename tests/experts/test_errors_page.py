"""What docs/errors.md shows runs."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def test_the_block_of_the_page_runs():
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(block.replace("size=64", "size=32").replace("range(5)", "range(2)"), PAGE.name, "exec"), names)
    assert names["matrix"].mean().shape == (2, 1, 2)
