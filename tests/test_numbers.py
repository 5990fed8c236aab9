"""Every measured number of the README and the docs stands in a file that a command of the repository writes.

A paragraph, list or table with numbers has a comment on the line before it, which names the files. Brackets keep only
the values of a file whose description matches every pattern in them:

    <!-- numbers: docs/measured/recommend.json[/RMSE; candidates=5] docs/properties/claims.csv;
    command: python -m benchmarks.recommend (not measured: 0.05) -->

The first line of a description is the column or the keys of the value, as /strategies/RMSE; the others are the rest of
its row or record, as name=value. `not measured` are settings, and `not kept` numbers of which only the text is left;
a block of such numbers says why: `<!-- no numbers: REASON -->`.
"""

import csv
import functools
import json
import random
import re
import subprocess
from dataclasses import dataclass, replace

import pytest

from tests.documents import FENCE, PAGES, ROOT, load_script
from tests.failures import refuse

# Pages without measured results, and why the numbers there are none, or are compared elsewhere.
UNCHECKED = {
    "CODE_OF_CONDUCT.md": "the version of the Covenant",
    "CHANGELOG.md": "says what changed, with the numbers of that day",
    "CONTRIBUTING.md": "settings",
    "RELEASING.md": "settings",
    "SECURITY.md": "limits, which tests/hostile attacks",
    "docs/reference/promises.md": "limits, which tests/hostile attacks",
    "docs/results/selection/claims.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/primary.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/plan.md": "written before the results, and not to be changed",
    "docs/results/selection/proposals.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/proposals_fast1.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/recipes.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/scores.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/table1.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/table2.md": "written by experiments.selection, beside its CSV",
    "docs/results/selection/transfer.md": "written by experiments.transfer, beside its CSV",
}
CHECKED = [name for page in PAGES if (name := str(page.relative_to(ROOT))) not in UNCHECKED]

COMMENT = re.compile(
    r"<!--\s*(?P<kind>numbers|no numbers|made by docs/tables\.py)(?:: (?P<text>.*?))?\s*-->\n", re.DOTALL
)
SOURCE = re.compile(r"([\w./-]+\.(?:csv|json|txt))(?:\[(.*?)\])?")
# Code, links, dates, versions, Fig. 2, and settings such as k = 3.
IGNORED = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b\d{4}-\d\d-\d\d\b"
    r"|\b(?:Python|torch|Apache|Fig\.|Table|recipe|splits?) \d[\d.]*|\b[kCNα] = \d[\d.]*"
)
NUMBER = re.compile(
    r"(?<![\w.,/^-])(?P<sign>[+-]?)(?P<digits>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?P<exponent>e-?\d+)?(?![\w^]|[.,]\d|-[a-zA-Z])"
)
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
        return [
            word
            for found in re.findall(r"\(not (?:measured|kept): (.*?)\)", self.comment, re.DOTALL)
            for word in found.split()
        ]

    def sources(self) -> list[tuple[str, str]]:
        return SOURCE.findall(self.comment.partition("command:")[0])

    def unknown(self, text: str | None = None) -> list[str]:
        """The numbers which no file rounds to."""
        block = self if text is None else replace(self, text=text)
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


def test_reasons_are_given_for_pages_that_exist():
    assert [name for name in UNCHECKED if not (ROOT / name).exists()] == []
    assert all(len(block.comment) >= 7 for block in BLOCKS if block.kind == "no numbers")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout knows what is tracked")
def test_files_named_are_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert sorted({name for block in MEASURED for name, _ in block.sources()} - {*listed}) == []


def test_derived_numbers_are_those_of_their_files():
    derived = load_script("docs/derived.py")
    assert json.loads(derived.FILE.read_text(encoding="utf-8")) == json.loads(json.dumps(derived.derive_all()))


def test_a_changed_number_is_noticed():
    """The files that a comment names must not hold so many numbers that any will do."""
    generator, noticed = random.Random(0), []
    for block in MEASURED:
        for number in block.numbers():
            start, end = number.span("digits")
            digits = [str(generator.randrange(1, 10)) if digit.isdigit() else digit for digit in block.text[start:end]]
            changed = block.text[:start] + "".join(digits) + block.text[end:]
            if changed != block.text and number[0] not in block.exempt():
                noticed.append(bool(block.unknown(changed)))
    assert sum(noticed) >= 0.85 * len(noticed)


SOURCE_TEXT = (
    "docs/measured/derived.json[/(pretrained networks|meta-task of experts/(models|errors)$)]"  # 1348; 74, 52540
)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("1,871 models, 52,540 errors, or 52,500", []),
        ("1,347 models and 52,400 errors", ["1,347", "52,400"]),
        ("74.0%, 73.5%, +74% and -74%", ["73.5", "-74"]),
        ("8 models on 2026-11-16, `0.5`, [x](0.5), ResNet-34.5, k = 0.5, v1.2, and p = 0.5", ["0.5"]),
        ("| a | 1 |\n|---|---|\n| 7.5 | 74 |\n| 8 | 95, of |\n| 9 | 96 experts |", ["95"]),
        ("8.4 (not measured), 12 to 13%", ["12", "13"]),
    ],
)
def test_numbers_are_found_and_compared_at_the_digits_shown(text, unknown):
    comment = f"<!-- numbers: {SOURCE_TEXT} (not measured: 8.4) -->\n"
    (block,) = read_blocks("x.md", f"{comment}{text}\n")
    assert block.unknown() == unknown


def test_blocks_end_at_an_empty_line_and_have_the_comment_before_them():
    page = "One 0.5\n\n<!-- numbers: a.csv -->\n| 0.6 |\n| 0.7 |\n\nTwo 0.8\n<!-- no numbers: settings -->\n- 0.9\n"
    page += "```sh\n0.1\n```\n"
    blocks = [(block.kind, block.text.strip()) for block in read_blocks("x.md", page)]
    assert blocks == [("", "One 0.5"), ("numbers", "| 0.6 |\n| 0.7 |"), ("", "Two 0.8"), ("no numbers", "- 0.9")]
    refuse(AssertionError, "no text after it", read_blocks, "x.md", "<!-- numbers: a.csv -->\n\n0.5\n")
