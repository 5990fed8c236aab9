"""Every measured number of the README and the docs stands in a file that a command of the repository writes.

A paragraph, list or table with numbers has a comment on the line before it, which names the files, and may keep of a file
only the values whose description matches every pattern in brackets:

    <!-- numbers: docs/measured/recommend.json[strategies; candidates=5] docs/properties/claims.csv;
    command: python -m benchmarks.recommend (not measured: 0.05) -->

The description of a value has its column or keys in the first line, as /strategies/RMSE, and then the rest of its row or
record, a line `name=value` each; patterns are searched in it. A block whose numbers no file has says why: `<!-- no numbers: REASON -->`.
"""

import csv
import functools
import json
import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documents import FENCE, PAGES, ROOT
from tests.failures import refuse

CHECKED = [
    "README.md",
]
# Pages that are not checked yet, and why.
UNCHECKED: dict[str, str] = {}

COMMENT = re.compile(r"<!--\s*(?P<kind>numbers|no numbers|made by docs/tables\.py)(?:: (?P<text>.*?))?\s*-->\n", re.DOTALL)
SOURCE = re.compile(r"([\w./-]+\.(?:csv|json|txt))(?:\[(.*?)\])?")
# Code, links and addresses, whole identifiers, dates, versions, settings such as k = 3 and alpha 0.15, and Fig. 2.
IGNORED = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b\d{4}-\d\d-\d\d\b|\b(?:Python|torch|Apache|Fig\.|Table|recipe|splits?) \d[\d.]*|\b[kCNα] = \d[\d.]*"
)
NUMBER = re.compile(r"(?<![\w.,/^-])(?P<sign>[+-]?)(?P<digits>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?P<exponent>e-?\d+)?(?![\w^]|[.,]\d|-[a-zA-Z])")
UNIT = r"(?:%|percent|points|times|seconds|s\b|ms\b|MB\b|GB\b|images/s)"
# A whole number is measured if a unit follows, also after others: 83 to 100%, 8.4 and 5%, 91 ± 2 points.
HAS_UNIT = re.compile(rf"(?:(?: to | and | or |, | ± |-)[+-]?[\d.,]+\d?)*(?: ?{UNIT})")
WORDS_OF_NUMBERS = re.compile(r"\b(?:p|to|of|each|s|ms|e)\b|\de-?\d")
DECIMAL_LINE = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|\d ?%|\d percent")


@dataclass(frozen=True)
class Block:
    """Lines of a page up to an empty one, with the comment before them: the files, or the reason why there are none."""

    place: str
    text: str
    kind: str = ""
    comment: str = ""

    @property
    def is_table(self) -> bool:
        return self.text.startswith("|")

    def numbers(self) -> list[re.Match]:
        """Decimal numbers, those with thousands, and whole ones with a unit or in a cell of a table."""
        numbers, text = [], IGNORED.sub(lambda found: " " * len(found[0]), self.text)
        for number in NUMBER.finditer(text):
            line = text[text.rfind("\n", 0, number.start()) + 1 : number.start()]
            cell = line.rpartition("|")[2] + text[number.start() :].partition("|")[0]
            is_label = self.is_table and (line.count("|") < 2 or text.count("\n", 0, number.start()) < 2)
            is_cell = self.is_table and not re.search("[A-Za-z]", WORDS_OF_NUMBERS.sub("", cell))
            if not is_label and (is_cell or re.search("[.,e]", number[0]) or HAS_UNIT.match(text, number.end())):
                numbers.append(number)
        return numbers

    def exempt(self) -> list[str]:
        return " ".join(re.findall(r"\(not measured: (.*?)\)", self.comment, re.DOTALL)).split()

    def sources(self) -> list[tuple[str, str]]:
        return SOURCE.findall(self.comment.partition("command:")[0])

    def unknown(self, text: str | None = None) -> list[str]:
        """The numbers which no file rounds to."""
        block = Block(self.place, self.text if text is None else text, self.kind, self.comment)
        values = sorted(value for name, pattern in self.sources() for value in read_values(name, pattern))
        scales = (1, 100) if re.search(r"%|percent|points", self.text) else (1,)
        return [
            number[0]
            for number in block.numbers()
            if number[0] not in self.exempt() and not is_among(number, values, scales, is_exact=self.is_table)
        ]


def is_among(number: re.Match, values: list[float], scales: tuple[int, ...], *, is_exact: bool) -> bool:
    """Whether a value rounds to the number as it is shown; in prose a sign may be put in words: '1.1 points worse'."""
    digits = number["digits"].replace(",", "")
    shown = float(number["sign"] + digits + (number["exponent"] or ""))
    step = 10.0 ** -len(digits.partition(".")[2]) * float("1" + (number["exponent"] or ""))
    if "," in number["digits"]:
        step = 10.0 ** (len(digits) - len(digits.rstrip("0")))
    signs = (1,) if is_exact or number["sign"] else (1, -1)
    return any(
        abs(sign * scale * value - shown) <= step * 0.5000001 for value in values for scale in scales for sign in signs
    )


@functools.cache
def read_values(name: str, pattern: str) -> tuple[float, ...]:
    """The numbers of a file whose description matches all patterns, which are divided by semicolons."""
    patterns = [re.compile(word.strip(), re.MULTILINE) for word in pattern.split(";")]
    return tuple(
        value for description, value in read_described(name) if all(word.search(description) for word in patterns)
    )


@functools.cache
def read_described(name: str) -> list[tuple[str, float]]:
    path = ROOT / name
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            return [pair for row in csv.DictReader(file) for pair in describe(row, "", "")]
    text = path.read_text(encoding="utf-8")
    return [*describe(json.loads(text) if path.suffix == ".json" else text.splitlines(), "", "")]


def describe(content, keys: str, record: str):
    """Yield every number in it, those in strings too, with its keys and the other entries of its records."""
    if isinstance(content, dict):
        plain = "\n".join(f"{key}={value}" for key, value in content.items() if isinstance(value, str | int))
        for key, value in content.items():
            yield from describe(value, f"{keys}/{key}", f"{record}\n{plain}")
    elif isinstance(content, list):
        for value in content:
            yield from describe(value, keys, record)
    elif isinstance(content, str):
        try:
            yield f"{keys}\n{record}", float(content)
        except ValueError:
            for number in re.findall(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", content):
                yield f"{keys}\n{record}\n{content}", float(number)
    elif isinstance(content, int | float):
        yield f"{keys}\n{record}", float(content)


def read_blocks(name: str, text: str | None = None) -> list[Block]:
    """The blocks of a page without its code; a comment belongs to the block that begins on the next line."""
    text = (ROOT / name).read_text(encoding="utf-8") if text is None else text
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    comments = {found.end(): found for found in COMMENT.finditer(text)}
    hidden = re.sub(r"<!--.*?-->", lambda found: re.sub(r"[^\n]", "\0", found[0]), text, flags=re.DOTALL)
    blocks = []
    for found in re.finditer(r"(?:^[^\n\0]*[^\s\0][^\n\0]*\n?)+", hidden, re.MULTILINE):
        comment = comments.pop(found.start(), None)
        place = f"{name}, line {text.count(chr(10), 0, found.start()) + 1}"
        blocks.append(Block(place, found[0], *(comment.groups("") if comment else ("", ""))))
    assert not comments, f"{name}: a comment with no text after it: {[found[0] for found in comments.values()]}"
    return blocks


BLOCKS = [block for name in CHECKED for block in read_blocks(name)]
MEASURED = [block for block in BLOCKS if block.kind == "numbers"]


@pytest.mark.parametrize("block", MEASURED, ids=lambda block: block.place)
def test_every_number_is_in_the_files_that_its_block_names(block):
    assert block.sources() and block.numbers()
    for name, pattern in block.sources():
        assert read_values(name, pattern), f"{block.place}: {name} has no number described by '{pattern}'"
    assert block.unknown() == [], f"{block.place}: no file that the comment names has these numbers"
    shown = [number[0] for number in block.numbers()]
    assert [word for word in block.exempt() if word not in shown] == [], f"{block.place}: exempt, but not in the text"


@pytest.mark.parametrize("name", CHECKED)
def test_every_line_with_a_number_has_its_files_or_a_reason(name):
    bare = [
        f"{block.place}: {line}"
        for block in read_blocks(name)
        if not block.kind
        for line in block.text.splitlines()
        if DECIMAL_LINE.search(IGNORED.sub(" ", line))
    ]
    assert bare == []


def test_every_page_is_checked_or_a_reason_is_given():
    assert {*CHECKED, *UNCHECKED} == {str(page.relative_to(ROOT)) for page in PAGES}
    assert all(len(block.comment) > 10 for block in BLOCKS if block.kind == "no numbers")


def test_files_named_are_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    names = {name for block in MEASURED for name, _ in block.sources()}
    assert [name for name in sorted(names) if not (name in listed if listed else (ROOT / name).exists())] == []


def test_a_changed_number_is_noticed():
    """The files must not hold so many numbers that any will do: nine in ten changes of all blocks are noticed."""
    generator, noticed = random.Random(0), []
    for block in MEASURED:
        numbers = [number for number in block.numbers() if number[0] not in block.exempt()]
        for number in numbers:
            start, end = number.span("digits")
            digits = [str(generator.randrange(1, 10)) if digit.isdigit() else digit for digit in block.text[start:end]]
            changed = block.text[:start] + "".join(digits) + block.text[end:]
            noticed.append(changed == block.text or bool(block.unknown(changed)))
    assert sum(noticed) >= 0.9 * len(noticed)
