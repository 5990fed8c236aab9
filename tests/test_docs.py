"""What the documents point at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8"))
    near = [link for link in links if "://" not in link]
    missing = [link for link in near if not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_the_repository_exist(document):
    named = set(re.findall(r"\b(?:benchmarks|src|tests)/[\w/]+\.py\b", document.read_text(encoding="utf-8")))
    assert not [name for name in named if not (ROOT / name).exists()]
