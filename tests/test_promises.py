"""The table of promises, attacks and tests tells the truth: every attack has a line, and every named test is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "promises.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
KINDS = {"D": 12, "N": 7, "W": 7, "S": 10, "R": 10}
ATTACKS = [f"{kind}{number}" for kind, last in KINDS.items() for number in range(1, last + 1)]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`( \(long\))?")


def read_rows(text, key):
    """The cells of every row of a table whose first cell matches."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows if re.fullmatch(key, row[0])}


@cache
def find_tests(file):
    """The tests of a file, and of each whether it is a long one, in part or as a whole."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: any(ast.unparse(m) == "pytest.mark.long" for m in node.decorator_list) for node in functions}


LINES = read_rows(PAGE, r"[DNWSR]\d+")
PROMISES = read_rows(PAGE, r"\d")


@pytest.mark.parametrize("attack", LINES)
def test_every_named_test_is_there(attack):
    named = TEST.findall(LINES[attack][1])
    assert named and len(named) == LINES[attack][1].count("::")
    for file, name, long in named:
        assert name in find_tests(file), f"{attack}: {file} has no {name}"
        assert find_tests(file)[name] == bool(long), f"{attack}: is {name} a long one?"


def test_the_promises_are_those_of_security_and_each_is_attacked_and_each_attack_has_its_promise():
    assert list(PROMISES) == [str(number) for number in range(1, 10)]
    rows = read_rows(SECURITY, r"\d")
    assert {number: row[0] for number, row in rows.items()} == {number: row[0] for number, row in PROMISES.items()}
    assert list(LINES) == ATTACKS
    (rest,) = read_rows(PAGE, r"\+").values()
    named = {number: row[1].split(", ") for number, row in {**PROMISES, "+": rest}.items()}
    assert all(set(attacks) <= set(ATTACKS) and attacks for attacks in named.values())
    assert {attack for attacks in named.values() for attack in attacks} == set(ATTACKS)


def test_every_file_of_attacks_is_in_the_table_and_the_exit_codes_have_their_test():
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "hostile").glob("test_*.py")}
    assert files <= {file for file, _, _ in TEST.findall(PAGE)}
    (_, name, _) = TEST.findall(PAGE.split("## Running")[1].split("The exit codes")[1])[0]
    assert name in find_tests("tests/cli/test_output.py")
