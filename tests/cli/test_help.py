"""What help says: plain words for values, defaults, whole sentences in lists, and options in groups."""

import re

import pytest

from task2vec.embedding import EmbedSettings
from tests.command import run_command

LARGE = ("embed", "embed-many", "nearest", "recommend", "train-expert", "error-matrix")


@pytest.fixture
def helped(call):
    """The help of a command, its lines joined."""
    return lambda *command: " ".join(call(*command, "--help").stdout.split())


@pytest.mark.parametrize("group", [(), ("library",)])
def test_no_sentence_in_a_list_is_cut_at_eighty_columns(group):
    told = run_command(*group, "--help", COLUMNS="80").stdout
    assert "Commands:" in told and "..." not in told.split("Commands:")[1]


@pytest.mark.parametrize("command", [*LARGE, "map", "evaluate", "tasks", "diversity"])
def test_values_are_words_and_not_types_of_python(helped, command):
    assert not re.search(r"<[^>]*>|list\[", helped(command))


@pytest.mark.parametrize("command", ["embed", "embed-many", "nearest"])
def test_defaults_are_named_and_are_those_of_the_settings(helped, command):
    told, usual = helped(command), EmbedSettings()
    values = {"method": usual.method, "fisher": usual.engine, "images": usual.images, "seed": usual.seed}
    values |= {"dtype": usual.dtype, "beta": "1e-7", "epochs": usual.variational.epochs}
    assert usual.beta == float(values["beta"])
    for option, value in values.items():
        after = told.split(f" --{option} ")[1].split(" --")[0]
        assert after.lower().split("default: ")[1].startswith(f"{value}."), option
    assert "default: by the device" in told


@pytest.mark.parametrize("command", LARGE)
def test_many_options_are_in_groups_and_none_is_lost(call, command):
    told = call(command, "--help").stdout
    heads = re.findall(r"^(\w[\w ]*):$", told, re.MULTILINE)
    assert heads[:3] == ["Arguments", "Options", "Tables"] and heads[-1] == "Library" and "Probe" in heads
    first = told.split("\nOptions:")[1].split("\nTables:")[0]
    assert "--json" in first and "--help" in first and "--weights" not in first
    for option in ("--download", "--device", "--library", "--path-column"):
        assert told.count(f"  {option} ") == 1


def test_few_options_stand_together(call):
    told = call("library", "ls", "--help").stdout
    assert "\nLibrary:" not in told and "  --library DIR" in told
