"""What commands say where a library is not as it should be: that it is so, and the command that mends this very one."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from task2vec import Library
from task2vec.cli.speech import name_library, named_library
from tests.cli.material import make


@pytest.fixture
def mine(tmp_path, own_library):
    """A library that is not the default one, in a folder whose name wants quotes."""
    folder = tmp_path / "my tasks"
    with Library.open(folder) as opened:
        for number in range(3):
            opened.add(make(f"task {number}", number))
    return folder


def advised(text):
    """The commands about libraries in a text, as the words of a shell."""
    found = re.findall(r"task2vec (?:library|nearest|embed).*?--library (?:'[^']*'|\S+)", text)
    return [shlex.split(command) for command in found]


LOOKS = [
    "library ls",
    "library stats",
    "library show x",
    "library verify",
    "library export x.t2vlib",
    "nearest x",
    "map",
]


def test_an_unfinished_repair_is_no_empty_library(call, mine):
    shutil.rmtree(mine)
    mine.mkdir()
    (mine / "repair-unfinished").touch()
    result = call("library", "ls", "--library", mine)
    assert result.exit_code == 4 and "not finished" in result.stderr


@pytest.mark.parametrize("args", ["show nothing", "rm nothing", "export x.t2vlib --tag nothing"])
def test_what_there_is_is_looked_for_in_the_library_that_was_named(call, mine, args):
    result = call("library", *args.split(), "--library", mine)
    assert result.exit_code == 2
    assert advised(result.stderr) == [["task2vec", "library", "ls", "--library", str(mine)]]


def test_commands_on_standard_output_name_the_library_too(call, mine):
    none = call("library", "ls", "--tag", "nothing", "--library", mine)
    assert advised(none.stdout) == [["task2vec", "library", "ls", "--library", str(mine)]]
    with Library.open(mine) as opened:
        opened.add(make("task 1", 1, method="direct"))
    several = call("library", "ls", "--library", mine)
    assert advised(several.stdout) == [["task2vec", "library", "show", "NAME", "--library", str(mine)]]


def test_a_damaged_index_is_mended_where_it_lies(call, mine):
    (mine / "library.sqlite").write_bytes(b"no index at all, and long enough to be taken for one" * 100)
    result = call("library", "ls", "--library", mine)
    verify, repair = advised(result.stderr)
    assert verify == ["task2vec", "library", "verify", "--library", str(mine)]
    assert repair == ["task2vec", "library", "repair", "--library", str(mine)]


def test_where_none_was_named_none_is(call, own_library):
    Library.open(own_library).close()
    result = call("library", "show", "nothing")
    assert "task2vec embed FOLDER" in result.stderr and "--library" not in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task2vec library ls; then: task2vec library rm", "task2vec library ls{}; then: task2vec library rm{}"),
        ("(task2vec embed FOLDER)", "(task2vec embed FOLDER{})"),
        ("task2vec nearest PATH --probe net --size 64", "task2vec nearest PATH{} --probe net --size 64"),
        ("task2vec embed DATA/birds", "task2vec embed{} DATA/birds"),
        ("task2vec embed FOLDER --library other", "task2vec embed FOLDER --library other"),
        ("task2vec embed FOLDER --no-library", "task2vec embed FOLDER --no-library"),
        ("no file of `task2vec library export` at all", "no file of `task2vec library export` at all"),
        ("task2vec map DIR, task2vec map", "task2vec map DIR, task2vec map{}"),
        ("a task2vec library is; install task2vec", "a task2vec library is; install task2vec"),
    ],
)  # fmt: skip
def test_the_library_stands_where_a_command_takes_it(text, expected):
    before = named_library.set(Path("a b"))
    try:
        once = name_library(text)
        assert once == expected.replace("{}", " --library 'a b'")
        assert name_library(once) == once
    finally:
        named_library.reset(before)
    assert name_library(text) == text
