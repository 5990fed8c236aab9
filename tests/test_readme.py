"""The README: its tables are those of the files, and what is named in it is there. That it runs: tests/test_docs.py."""

import re
import tomllib

import task2vec
from tests.documents import ROOT, load_script


def test_tables_are_those_of_the_files():
    tables = load_script("docs/tables.py")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tables.fill(text) == text, "the tables have changed: python docs/tables.py"
    assert len(tables.BLOCK.findall(text)) == 1 and "combined" in tables.make_table()


def test_it_is_cited_with_its_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert task2vec.__version__ == project["version"]
    assert f"\nversion: {project['version']}\n" in citation and f"\nlicense: {project['license']}\n" in citation


def test_it_is_short_enough_to_be_read():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1300


def test_make_help_names_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "test-all", "check", "bench", "paper", "docs", "clean"):
        assert re.search(rf"^{target}:.*## ", text, re.MULTILINE), target
