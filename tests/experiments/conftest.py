"""A runner for the commands of the experiments."""

import importlib

import pytest
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def wide_page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def call(request):
    """Run the command of the experiment that the test file is named after; the result has exit_code and stdout."""
    name = request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_").removesuffix("_command")
    app = importlib.import_module(f"experiments.commands.{name}").app
    return lambda *args: CliRunner().invoke(app, [str(argument) for argument in args])
