"""R8: every snippet of every page runs, in the order of the page, or a comment before it gives the reason why not."""

import re
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import task2vec as t2v
from task2vec.cli.app import app
from tests.documents import PAGES, ROOT, Snippet, make_photos, read_snippets, read_text
from tests.tiny_probe import make_tiny

# Commands that no test can run, and why.
NEVER_RUN = {
    "make": "the tests are run by it; that the target is there is tested",
    "pip": "tests reach no network; that the extras are there is tested",
    "git": "tests reach no network",
    "source": "it changes the shell of who types it",
    "cd": "it changes the shell of who types it",
}
# So many gradients instead of 400, for commands that embed and for `t2v.embed`.
GRADIENTS = 4


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


SNIPPETS = [snippet for page in PAGES for snippet in read_snippets(page)]
SHELL = [snippet for snippet in SNIPPETS if snippet.kind == "shell"]
RUN = {page: [snippet for snippet in read_snippets(page) if snippet.reason is None] for page in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if RUN[page]], ids=named)
def test_snippets_run(page, tmp_path, monkeypatch):
    """In the order of the page, in one namespace, one folder and one library."""
    monkeypatch.chdir(tmp_path)
    few = {**t2v.embed.__kwdefaults__, "settings": t2v.EmbedSettings(max_samples=GRADIENTS)}
    monkeypatch.setattr(t2v.embed, "__kwdefaults__", few)
    text = "\n".join(snippet.text for snippet in RUN[page])
    for folder in ("my_photos", "other_photos"):
        if folder in text:
            make_photos(tmp_path / folder, classes=("dress", "hat"), images=2, seed=len(folder))
    if '"pets"' in text:
        for split in ("train", "val"):
            make_photos(tmp_path / "pets" / split, classes=("cat", "dog", "owl"), images=8, seed=len(split))
    # A model is recommended for embeddings by the default probe at its own size; elsewhere a tiny probe will do.
    if "task2vec recommend" not in text:
        monkeypatch.setattr(t2v, "load_probe", lambda *args, **options: make_tiny())
    names: dict = {"__name__": "page"}
    for snippet in RUN[page]:
        if snippet.kind == "python":
            exec(compile(snippet.text, snippet.place, "exec"), names)
        else:
            run_shell(snippet)


def run_shell(snippet: Snippet) -> None:
    cheap = ["--max-samples", str(GRADIENTS)]
    for program, *words in snippet.commands():
        if program == "task2vec":
            result = CliRunner().invoke(app, [*words, *(cheap if words[0] == "embed" else [])])
            assert result.exit_code == 0, f"{snippet.place}: task2vec {' '.join(words)}: {result.output}"
        else:
            assert program in NEVER_RUN, f"{snippet.place}: nobody runs {program}; say why: <!-- not run: REASON -->"


@pytest.mark.parametrize("snippet", SHELL, ids=lambda snippet: snippet.place)
def test_commands_are_spelt_right(snippet):
    """Those that are not run, too: options and commands exist, and take what they are given."""
    for program, *words in snippet.commands():
        if program == "task2vec":
            parse(words)
        elif program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert set(words) <= set(targets)
        elif program == "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            extras = [extra for word in words for part in re.findall(r"\[(.*?)\]", word) for extra in part.split(",")]
            assert set(extras) <= set(project["optional-dependencies"])


def parse(words: list[str]) -> None:
    """Walk the commands and read the options as the command line does, and stop before anything is done."""
    command = typer.main.get_command(app)
    context = command.make_context("task2vec", list(words))
    while hasattr(command, "commands"):
        words = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)


def test_what_is_spelt_wrong_is_found():
    for words in (["embed", "x", "--sise", "3"], ["library", "lst"], ["serf"]):
        with pytest.raises(Exception, match="No such") as caught:  # typer has click's errors under a name of its own
            parse(words)
        assert type(caught.value).__name__ in ("NoSuchOption", "UsageError")


def test_snippets_that_nobody_runs_are_found():
    text = "Words.\n\n    ray start --head\n\n<!-- not run: it takes an hour -->\n```python\n1 / 0\n```\n\n    x = y\n"
    text += "```\n$ task2vec ls; task2vec probes  # two\nnothing\n```\n"
    ray, python, shown = read_text(ROOT / "x.md", text)
    with pytest.raises(AssertionError, match="nobody runs ray"):
        run_shell(ray)
    assert [ray.reason, python.reason, shown.reason] == [None, "it takes an hour", None]
    assert shown.commands() == [["task2vec", "ls"], ["task2vec", "probes"]]
    with pytest.raises(ValueError, match="'bash'"):
        read_text(ROOT / "x.md", "```bash\nls\n```\n")


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_links_and_files_of_the_repository_exist(document):
    text = document.read_text(encoding="utf-8")
    links = [document.parent / link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    links += [ROOT / name for name in re.findall(r"\b(?:benchmarks|experiments|src|tests)/[\w/]+\.py\b", text)]
    assert [link for link in links if not link.exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.parent != ROOT and page.name != "README.md"]
    missing = [str(page) for page in pages if f"]({page})" not in index and page.parts[0] != "results"]
    assert not missing
