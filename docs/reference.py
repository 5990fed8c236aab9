"""Build the reference: all public names, by pdoc from their docstrings, and all commands, from their help texts.

    python docs/reference.py site

Public names are imported on first use, but pdoc documents only what a module contains, so all of them are set first.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pdoc
import typer
from typer.testing import CliRunner

import task2vec
from task2vec.cli.app import app

# Modules that are public as a whole, and have their own page.
PUBLIC = ("task2vec.distance", "task2vec.errors")


def build(folder: Path) -> None:
    """Write the pages into a folder."""
    for name in task2vec.__all__:
        setattr(task2vec, name, getattr(task2vec, name))
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    pdoc.pdoc("task2vec", *(f"!task2vec.{name}" for name in _list_internal_packages()), output_directory=folder)
    (folder / "cli.html").write_text(_format_commands(), encoding="utf-8")
    index = folder / "task2vec.html"
    page, mark, rest = index.read_text(encoding="utf-8").partition('<main class="pdoc">')
    assert mark, "pdoc's page has changed"
    link = '<p><a href="cli.html">The command line</a></p>'
    index.write_text(page + mark + link + rest, encoding="utf-8")


def list_commands(words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, the empty tuple for `task2vec` itself first."""
    yield words
    group = typer.main.get_command(app)
    for word in words:
        group = group.get_command(None, word)
    for name in getattr(group, "commands", ()):
        yield from list_commands((*words, name))


def _format_commands() -> str:
    """A page with the help text of every command."""
    parts = []
    for words in list_commands():
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="task2vec").stdout
        name, label = " ".join(("task2vec", *words)), "-".join(words) or "task2vec"
        parts.append(f'<section id="{label}"><h2>{name}</h2><pre>{escape(shown)}</pre></section>')
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>task2vec: the command line</title>'
    about = '<h1>The command line</h1><p><a href="task2vec.html">The Python API</a></p>'
    return "\n".join([head, about, *parts, "</html>"])


def _list_internal_packages() -> list[str]:
    """The packages that are not part of the public API."""
    here = Path(task2vec.__file__).parent
    names = [place.name for place in here.iterdir() if (place / "__init__.py").exists()]
    return sorted(name for name in names if f"task2vec.{name}" not in PUBLIC)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
