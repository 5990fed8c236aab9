"""What docs/many.md shows runs: its blocks in order, on a small folder and a small table of the kinds it describes."""

import csv
import re
from pathlib import Path

from tests.tasks.test_folder import paint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "many.md"


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = []
    for shade in range(24):
        place = f"pets/{('cat', 'dog', 'owl')[shade % 3]}/{shade}.png"
        paint(tmp_path / place, 9 * shade)
        rows.append({"path": place, "denim": shade // 12, "floral": shade % 2})
    with open("clothes.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    told = capsys.readouterr().out.splitlines()
    assert [line.rsplit(maxsplit=1)[0] for line in told[:3]] == ["pets: cat", "pets: dog", "pets: owl"]
    assert all(float(line.rsplit(maxsplit=1)[1]) > 0 for line in told[:3])
    assert told[3] == "Embedding(clothes, probe=tf_efficientnet_lite0, 21008 filters, 24 images)"
    assert told[4:] == ["True"]
    assert [names["found"][number].task for number in range(3)] == ["clothes", "clothes: denim", "clothes: floral"]
    assert len(list((tmp_path / "embeddings").iterdir())) == 3
