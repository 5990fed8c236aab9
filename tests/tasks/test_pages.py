"""R8: the Python of docs/sources.md and docs/datasets.md runs, in order and in one namespace, on small datasets."""

import re
from pathlib import Path

import pytest

from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist, write_inaturalist
from tests.tasks.test_folder import paint

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_blocks(page: str, expected: int) -> dict:
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(blocks) == expected
    names: dict = {"__name__": "page"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, Python block {number}", "exec"), names)
    return names


def test_the_page_of_sources_runs(tmp_path, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets", reason="the page shows the datasets package, which is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    places = [f"{split}/{kind}" for split in ("train", "val") for kind in ("cat", "dog", "owl")]
    for shade in range(48):
        paint(tmp_path / "pets" / places[shade % 6] / f"{shade}.png", shade)
    names = run_blocks("sources.md", 2)
    assert [len(names[name]) for name in ("task", "few", "train", "test", "whole", "which")] == [24, 12, 18, 6, 24, 24]
    assert {split: len(task) for split, task in names["splits"].items()} == {"train": 24, "val": 24}
    assert capsys.readouterr().out.startswith("{'carnivores': Task(pets (train): carnivores, 16 images, 2 classes)}")


def test_the_page_of_datasets_runs(tmp_path, monkeypatch, capsys):
    make_cub(tmp_path / "CUB_200_2011")
    make_deepfashion(tmp_path / "deepfashion")
    write_inaturalist(tmp_path / "inat2018")
    write_imaterialist(tmp_path / "imaterialist")
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks("datasets.md", 4)
    assert repr(namespace["task"]) == "Task(cub200: Corvidae (train), 4 images, 2 classes)"
    assert namespace["nature"].of_kind("order")[0].name == "Passeriformes"
    assert namespace["perching"].name == "inaturalist2018: Passeriformes (val)"
    assert namespace["black"].classes == ("not Black", "Black")
    floral, linen = namespace["shared"]
    assert len(floral) <= 20 and {floral.images.name(n) for n in range(len(floral))} & {
        linen.images.name(n) for n in range(len(linen))
    }
    assert capsys.readouterr().out.startswith("Catalog(cub200, 24 images")
