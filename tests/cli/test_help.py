"""Help: lazy, plain, within the terminal, and few commands and options."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import task2vec
from task2vec.cli.app import COMMANDS, FORMER_NAMES, SECTIONS, SUBCOMMANDS, app
from task2vec.embedding import EmbedSettings
from tests.cli.material import call

ALL = [(name,) for name in COMMANDS if name not in SUBCOMMANDS]
ALL += [(group, name) for group, names in SUBCOMMANDS.items() for name in names]


# Options of other programs that messages name, and the one that every command has.
OTHERS = {"--help", "--head", "--force-reinstall", "--upgrade"}


def test_options_are_few_and_messages_name_no_others():
    root: Any = typer.main.get_command(app)
    context = root.make_context("task2vec", [], resilient_parsing=True)
    found = {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if name in SUBCOMMANDS:
            found |= {(name, word): command.get_command(context, word) for word in command.list_commands(context)}
        else:
            found[name,] = command
    assert set(found) == set(ALL) and len(found) <= 29
    params = [param for command in found.values() for param in command.params if param.param_type_name == "option"]
    options = {name for param in params for name in (*param.opts, *param.secondary_opts)} | {"--debug", "--version"}
    hidden = {name for param in params if getattr(param, "hidden", False) for name in param.opts}
    assert hidden == {"--pool"} and len(options - hidden) <= 70, sorted(options)
    for file in Path(task2vec.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", node.value))
                assert named <= options | OTHERS, f"{file.name}:{node.lineno}"


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_has_plain_help(command):
    result = call(*command, "--help")
    assert result.exit_code == 0, result.output
    assert not re.search(r"<[^>]*>|list\[", result.stdout) and "--help" in result.stdout
    about = " ".join(result.stdout.split("\n\n")[1].split())
    assert about.endswith((".", "NAME", "TAG")) and about[0].isupper()


@pytest.mark.parametrize("group", [(), ("library",), ("metatask",)])
def test_no_sentence_in_a_list_is_cut_at_eighty_columns(group):
    shown = call(*group, "--help").stdout
    assert "..." not in shown.split("\n\n", 2)[2]
    assert max(map(len, shown.splitlines())) <= 80


def test_defaults_are_those_of_the_settings():
    shown, usual = " ".join(call("embed", "--help").stdout.split()), EmbedSettings()
    values = {"method": usual.method, "max-samples": usual.max_samples, "seed": usual.seed, "dtype": usual.dtype}
    values["epochs"] = usual.variational.epochs
    for option, value in values.items():
        text = shown.split(f" --{option} ")[1].split(" --")[0]
        assert f"Default: {value}" in text, option


@pytest.mark.parametrize("command", ["embed", "metatask train", "metatask measure"])
def test_many_options_are_in_groups(command):
    shown = call(*command.split(), "--help").stdout
    heads = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    assert heads[:3] == ["Arguments", "Options", "Tables"] and heads[-1] == "Library"
    first = shown.split("\nOptions:")[1].split("\nTables:")[0]
    assert "--json" in first and "--help" in first and "--download" not in first


def test_a_wrong_command_gets_a_hint_and_version_is_printed():
    result = call("emebd")
    assert result.exit_code == 2 and "Did you mean 'embed'?" in result.stderr
    assert call("library", "lst").exit_code == 2 and call("embed", "--nonsense").exit_code == 2
    assert call("--version").stdout.startswith("task2vec 0.")


def test_the_first_screen_has_every_command_once_in_groups():
    shown = call("--help").stdout
    names = [name for section in SECTIONS.values() for name in section.split()]
    assert sorted(names) == sorted(COMMANDS) and len(names) <= 14
    assert re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE) == ["Options", *SECTIONS]
    assert not any(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in FORMER_NAMES)


@pytest.mark.parametrize("former", list(FORMER_NAMES))
def test_a_former_name_runs_and_says_the_new_one(former):
    former_help, new_help = (call(*words.split(), "--help").stdout for words in (former, FORMER_NAMES[former]))
    assert former_help.split("\n\n", 1)[1] == new_help.split("\n\n", 1)[1]
    refused = call(former, "nothing", "--expert", "x") if former == "error-matrix" else call(former, "nothing")
    assert refused.exit_code == 2
    if former != "evaluate":  # it takes no argument
        assert f"'task2vec {former}' is now 'task2vec {FORMER_NAMES[former]}'" in refused.stderr
