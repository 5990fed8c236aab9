"""The snippets of a document: what it shows as Python and as commands, and why some of it is not run.

A block of ```python or ```sh is a snippet; so is an indented block whose lines begin with a command, and every line
`$ command` of a block that shows output. The line before a block may say `<!-- not run: REASON -->`.
"""

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in ROOT.glob("docs/**/*.md"))])
COMMANDS = ("task2vec", "make", "pip", "python", "python3", "git", "ray", "source", "cd", "curl", "jupyter", "export")
SHOWN = {"", "text", "json", "bibtex"}  # languages of blocks that show something and tell nobody to run it
MARK = re.compile(r"<!-- not run: (?P<reason>.{10,}) -->")
PYTHONIC = re.compile(r"^(import |from \S+ import )|\bt2v\.\w", re.MULTILINE)


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
            found.append([])
            for word in words:
                if word in (";", "&&"):
                    found.append([])
                else:
                    found[-1].append(word)
        return [words for words in found if words]


def read_snippets(page: Path, text: str | None = None) -> list[Snippet]:
    """All snippets of a page, or of this text instead, in its order; a fence of an unknown language is refused."""
    snippets = []
    for line, language, body, before in _blocks((text or page.read_text(encoding="utf-8")).splitlines()):
        mark = MARK.fullmatch(before)
        reason = mark["reason"] if mark else None
        if language == "python" or (language is None and PYTHONIC.search(body)):
            snippets.append(Snippet(page, line, "python", body, reason))
        elif language == "sh" or (language is None and body.split(maxsplit=1)[0] in COMMANDS):
            snippets.append(Snippet(page, line, "shell", body, reason))
        elif language in SHOWN:
            told = [row[2:] for row in body.splitlines() if row.startswith("$ ")]
            if told:
                snippets.append(Snippet(page, line, "shell", "\n".join(told), reason))
        elif language is not None:
            raise ValueError(f"{page.name}, line {line}: a block of {language!r} is neither python, sh nor {SHOWN}")
    return snippets


def _blocks(lines: list[str]):
    """Number, language (nothing: indented), body and the last line before it, of every block."""
    number, before = 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].startswith("```"))
            yield number + 1, line[3:].strip(), "\n".join(lines[number + 1 : end]) + "\n", before
            number, line, before = end, "", ""
        elif line.startswith("    ") and line.strip() and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield number + 1, None, "\n".join(row[4:] for row in lines[number:end]).rstrip() + "\n", before
            number, line, before = end - 1, "", ""
        if line.strip():
            before = line.strip()
        number += 1


def load_script(path: str):
    """The module of a script of the repository that is not in a package."""
    place = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module
