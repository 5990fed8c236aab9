"""What MkDocs does not do by itself: the front page is the README, and the reference comes from the source.

`make docs` runs `mkdocs build --strict`, which loads this file (mkdocs.yml names it).
"""

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import typer
from mkdocs.structure.files import File
from typer.testing import CliRunner

import task2vec
from task2vec.cli.app import app

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Packages that are public as a whole, and have a page of their own.
MODULES = ("distance", "errors")
# The order of the Python reference: as a task goes through the packages.
PACKAGES = ("tasks", "probe", "embedding", "library", "experts", "metatask", "select")
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")


class ExampleSections(griffe.Extension):
    """Shows the section `Example` of a docstring as code; griffe only knows `Examples`."""

    def on_object(self, *, obj, **_):
        """Rename the section of one object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")


def on_files(files, config):
    """The files of the docs, and the pages that are made here."""
    pages = {
        "index.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "reference/commands.md": write_commands(),
        "reference/python.md": write_python(),
        "reference/distance.md": write_module("distance"),
        "reference/errors.md": "# Errors\n\n::: task2vec.errors\n    options: {show_root_heading: false}\n",
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """The text of a page without comments, with links to what is not on the site leading to the repository."""
    path = page.file.src_uri
    source = "README.md" if path == "index.md" else f"docs/{path}"

    def rewrite(link: re.Match) -> str:
        target, anchor = link[1], link[2] or ""
        if not target:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if target == "docs/README.md":
            target = "docs/index.md"
        inside = target.removeprefix("docs/")
        if target.startswith("docs/") and files.get_file_from_path(inside) and not inside.endswith(".ipynb"):
            return f"]({posixpath.relpath(inside, posixpath.dirname(path) or '.')}{anchor})"
        if not (ROOT / target).exists():
            return link[0]  # strict mode reports it
        return f"]({config.extra['repository']}/blob/main/{target}{anchor})"

    return LINK.sub(rewrite, COMMENT.sub("", markdown))


def write_python() -> str:
    """The page of all public names, by package."""
    packages: dict[str, list[str]] = {}
    for name in task2vec.__all__:
        module = getattr(getattr(task2vec, name), "__module__", None)
        if module and name not in MODULES:
            packages.setdefault(module.split(".")[1], []).append(name)
    order = [*(package for package in PACKAGES if package in packages), *sorted(packages.keys() - {*PACKAGES})]
    sections = [
        f"## {package.capitalize()}\n\n"
        + "".join(f"::: task2vec.{name}\n    options: {{heading_level: 3}}\n\n" for name in packages[package])
        for package in order
    ]
    about = "Every public name. [Distances](distance.md) and [errors](errors.md) have pages of their own."
    return "\n\n".join(["# Python", about, "```python\nimport task2vec as t2v\n```", *sections])


def write_module(name: str) -> str:
    """The page of a package whose `__all__` lists what it imports."""
    module = getattr(task2vec, name)
    members = [name for name in module.__all__ if callable(getattr(module, name))]
    about = inspect.getdoc(module)
    return f"# {name.capitalize()}\n\n{about}\n\n" + "".join(
        f"::: {module.__name__}.{member}\n\n" for member in members
    )


def write_commands() -> str:
    """The page with the help text of every command."""
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    sections = ["# Command line", "What `--help` prints for every command."]
    for words in list_commands(typer.main.get_command(app)):
        text = runner.invoke(app, [*words, "--help"], prog_name="task2vec").stdout
        sections.append(f"## {' '.join(('task2vec', *words))}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(sections) + "\n"


def list_commands(command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that is not hidden, the empty tuple for `task2vec` itself first."""
    yield words
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        subcommand = command.get_command(None, name)
        if not subcommand.hidden:
            yield from list_commands(subcommand, (*words, name))
