"""R8: what the README shows is what happens: its Python blocks run, in order, in one namespace and an empty folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def make_photos(folder: Path) -> None:
    """The folder that the README calls `my_photos`: three classes of small generated pictures."""
    import task2vec

    shapes = next(task for task in task2vec.sample_tasks(images_per_task=40) if task.name == "shapes")
    for index, target in enumerate(shapes.targets):
        place = folder / shapes.classes[target]
        place.mkdir(parents=True, exist_ok=True)
        shapes.images.load(index).save(place / f"{index}.png")


def test_python_blocks_run(tmp_path, monkeypatch):
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")
    blocks = BLOCK.findall(readme.read_text(encoding="utf-8"))
    assert blocks, "the README shows no Python"
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "my_photos")
    make_photos(tmp_path / "other_photos")
    namespace = {"__name__": "readme"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_within_the_project_lead_somewhere(name):
    page = ROOT / name
    if not page.exists():
        pytest.skip(f"there is no {name} yet")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def test_make_help_names_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "check", "bench", "test-hostile", "clean"):
        assert re.search(rf"^{target}:.*## ", text, re.MULTILINE), target
