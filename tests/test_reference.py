"""The reference is built from docstrings, offline, and has every public name."""

import re

import pytest

import task2vec
from task2vec.cli.app import COMMANDS, SUBCOMMANDS
from tests.documents import MAKEFILE, ROOT, load_script


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that `make docs` fills."""
    folder = tmp_path_factory.mktemp("site")
    load_script("docs/reference.py").build(folder)
    return folder


def test_the_reference_has_every_public_name(site):
    page = (site / "task2vec.html").read_text(encoding="utf-8")
    missing = {name for name in task2vec.__all__ if f'id="{name}"' not in page}
    assert missing == {"distance", "errors"}  # rooms, which have pages of their own
    assert all((site / "task2vec" / f"{room}.html").exists() for room in missing)
    distances = (site / "task2vec" / "distance.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in distances for name in ("symmetric", "asymmetric", "pairwise", "with_error"))


def test_the_reference_has_every_command_and_option(site):
    page = (site / "cli.html").read_text(encoding="utf-8")
    names = {*COMMANDS, *(f"{group}-{name}" for group, words in SUBCOMMANDS.items() for name in words)}
    assert set(re.findall(r'<section id="([^"]+)"', page)) == names | {"task2vec"}
    embed = page.split('id="embed"')[1].split("</section>")[0]
    assert "task2vec embed [OPTIONS] PATH..." in embed and "--max-samples N" in embed and "&lt;" not in embed
    assert '<a href="cli.html">' in (site / "task2vec.html").read_text(encoding="utf-8")


def test_it_needs_no_network_and_make_docs_builds_it(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:script|img|link)[^>]+(?:src|href)=["'](?:https?:)?//""", text)
    assert re.search(r"^docs:.*\n\t\$\(BIN\)/python docs/reference\.py site$", MAKEFILE, re.MULTILINE)
    assert "/site/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
