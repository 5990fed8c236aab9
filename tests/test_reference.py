"""The site of the documentation: the reference has every public name and command, and the whole is built offline."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import task2vec
from tests.documents import MAKEFILE, ROOT, load_script

if importlib.util.find_spec("mkdocs") is None:
    pytest.skip("mkdocs is not installed: task2vec[docs]", allow_module_level=True)


@pytest.fixture(scope="module")
def hooks():
    return load_script("docs/site_hooks.py")


def test_the_python_reference_has_every_public_name(hooks):
    names = set(re.findall(r"^::: task2vec\.(\w+)$", hooks.write_python(), re.MULTILINE))
    assert names == {*task2vec.__all__} - {"__version__", *hooks.MODULES}
    distances = re.findall(r"^::: task2vec\.distance\.(\w+)$", hooks.write_module("distance"), re.MULTILINE)
    assert {"symmetric", "asymmetric", "pairwise", "with_error", "diversity", "taxonomic"} <= {*distances}


def test_the_command_reference_has_every_command_and_option(hooks):
    page = hooks.write_commands()
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert {"task2vec", "task2vec embed", "task2vec recommend", "task2vec library verify"} <= {*titles}
    assert len(titles) == len({*titles}) > 20
    embed = page.split("\n## task2vec embed\n")[1].split("\n## ")[0]
    assert "task2vec embed [OPTIONS] PATH..." in embed and "--max-samples N" in embed and "\x1b" not in page


def test_a_link_out_of_the_docs_leads_to_the_repository(hooks):
    class Files:
        def get_file_from_path(self, path):
            return (ROOT / "docs" / path).exists() or None

    class Page:
        file = type("File", (), {"src_uri": "start/tutorial.md"})

    config = type("Config", (), {"extra": {"repository": "https://host/repository"}})
    text = "<!-- numbers: x.csv -->\n[a](../how-to/data.md#x) [b](../../SECURITY.md) [c](#d) [e](https://f.org)"
    expected = "[a](../how-to/data.md#x) [b](https://host/repository/blob/main/SECURITY.md) [c](#d) [e](https://f.org)"
    assert hooks.on_page_markdown(text, Page, config, Files()) == expected


def test_make_docs_is_strict_and_no_page_asks_another_server():
    assert re.search(r"^docs:.*\n\t.*\$\(BIN\)/mkdocs build --strict$", MAKEFILE, re.MULTILINE)
    assert "/site/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # With repo_url, the theme asks GitHub for the number of stars.
    assert "\n  font: false\n" in settings and "\nrepo_url" not in settings


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    pages = list(Path(tmp_path).rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)=["'](?:https?:)?//""", text)
