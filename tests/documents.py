"""The snippets of a document: what it shows as Python and as commands, and why some of it is not run.

A block of ```python or ```sh is a snippet; so is every line `$ command` of a block that shows output. The line before a
block may say `<!-- not run: REASON -->`.
"""

import importlib.util
import re
import shlex
import tomllib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in ROOT.glob("docs/**/*.md"))])
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python": "python", "sh": "shell"}
SHOWN = {"", "text", "json", "bibtex"}  # languages of blocks that show something and tell nobody to run it
MARK = re.compile(r"<!-- not run: (?P<reason>.{10,}) -->")


@dataclass(frozen=True)
class Snippet:
    """One block: `kind` is python or shell; `reason` says why it is not run, or is nothing."""

    page: Path
    line: int
    kind: str
    text: str
    reason: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell snippet; comments are gone, continued lines joined."""
        found: list[list[str]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars=";&")
            words.whitespace_split = True
            for is_end, command in groupby(words, lambda word: word in (";", "&&")):
                found += [] if is_end else [[*command]]
        return found


def read_snippets(page: Path, text: str | None = None) -> list[Snippet]:
    """All snippets of a page, or of this text instead, in its order; other kinds of blocks are refused."""
    snippets, text = [], text or page.read_text(encoding="utf-8")
    if re.search(r"(?:\A|\n\n) {4}\S", FENCE.sub("", text)):
        raise ValueError(f"{page.name}: nobody runs an indented block. Put it between fences: ```sh")
    for block in FENCE.finditer(text):
        language, body = block.groups()
        line, before = text.count("\n", 0, block.start()) + 1, text[: block.start()].rstrip().rpartition("\n")[2]
        mark = MARK.fullmatch(before)
        if language in SHOWN:
            body = "".join(f"{row[2:]}\n" for row in body.splitlines() if row.startswith("$ "))
        elif language not in KINDS:
            raise ValueError(f"{page.name}, line {line}: a block of {language!r} is neither python, sh nor {SHOWN}")
        if body:
            snippets.append(Snippet(page, line, KINDS.get(language, "shell"), body, mark["reason"] if mark else None))
    return snippets


def load_script(path: str):
    """The module of a script of the repository that is not in a package."""
    place = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module
