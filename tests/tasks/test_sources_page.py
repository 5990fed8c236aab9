"""What docs/sources.md shows runs: its blocks in order, on a small folder of the kind it describes."""

import re
from pathlib import Path

import pytest

from tests.tasks.test_folder import paint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets", reason="the page shows the datasets package, which is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    places = [f"{split}/{kind}" for split in ("train", "val") for kind in ("cat", "dog", "owl")]
    for shade in range(48):
        paint(tmp_path / "pets" / places[shade % 6] / f"{shade}.png", shade)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert [len(names[name]) for name in ("task", "few", "train", "test", "whole", "which")] == [24, 12, 18, 6, 24, 24]
    assert {split: len(task) for split, task in names["splits"].items()} == {"train": 24, "val": 24}
    assert capsys.readouterr().out.startswith("{'carnivores': Task(pets (train): carnivores, 16 images, 2 classes)}")
