"""The figures of the documentation are those that docs/figures/make.py draws."""

import re

from PIL import Image

from tests.documents import ROOT, load_script


def test_every_figure_of_the_page_is_drawn_by_the_script(tmp_path):
    drawn = {path.name: path for path in load_script("docs/figures/make.py").draw_all(tmp_path)}
    page = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*/*.md"))
    assert set(re.findall(r"\]\(\.\./figures/(\S+?\.png)\)", page)) == set(drawn)
    for name, path in drawn.items():
        kept = ROOT / "docs" / "figures" / name
        assert kept.stat().st_size < 100_000
        with Image.open(path) as new, Image.open(kept) as old:
            assert new.size == old.size and len(new.convert("L").getcolors(256)) > 4
