"""R8: the Python of docs/datasets.md runs, in order and in one namespace, on small datasets in published layouts."""

import re
from pathlib import Path

from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist, write_inaturalist

PAGE = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    make_cub(tmp_path / "CUB_200_2011")
    make_deepfashion(tmp_path / "deepfashion")
    write_inaturalist(tmp_path / "inat2018")
    write_imaterialist(tmp_path / "imaterialist")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    namespace = {"__name__": "datasets"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{PAGE.name}, Python block {number}", "exec"), namespace)
    assert repr(namespace["task"]) == "Task(cub200: Corvidae (train), 4 images, 2 classes)"
    assert namespace["nature"].of_kind("order")[0].name == "Passeriformes"
    assert namespace["perching"].name == "inaturalist2018: Passeriformes (val)"
    assert namespace["black"].classes == ("not Black", "Black")
    floral, linen = namespace["shared"]
    assert len(floral) <= 20 and {floral.images.name(n) for n in range(len(floral))} & {
        linen.images.name(n) for n in range(len(linen))
    }
    assert capsys.readouterr().out.startswith("Catalog(cub200, 24 images")
