"""R8: every snippet of every page runs, in the order of the page, or a comment before it gives the reason why not.

The notebook runs as well; tables and figures are those that their scripts make.
"""

import json
import re
from pathlib import Path

import matplotlib
import pytest
import typer
from PIL import Image

import task2vec as t2v
from task2vec.cli.app import app
from tests.cli.material import call, paint
from tests.command import run_command
from tests.documents import MAKEFILE, PAGES, PROJECT, ROOT, Snippet, load_script, read_snippets
from tests.failures import refuse
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
RUN = {page: [snippet for snippet in SNIPPETS if snippet.page == page and snippet.reason is None] for page in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if RUN[page]], ids=named)
def test_snippets_run(page, tmp_path, monkeypatch):
    """In the order of the page, in one namespace, one folder and one library."""
    monkeypatch.chdir(tmp_path)
    few = {**t2v.embed.__kwdefaults__, "settings": t2v.EmbedSettings(max_samples=GRADIENTS)}
    monkeypatch.setattr(t2v.embed, "__kwdefaults__", few)
    text = "\n".join(snippet.text for snippet in RUN[page])
    for folder in ("my_photos", "other_photos"):
        if folder in text:
            paint(tmp_path / folder, {"dress": 60, "hat": 120}, count=2, seed=len(folder))
    if '"pets"' in text:
        for split in ("train", "val"):
            paint(tmp_path / "pets" / split, {"cat": 60, "dog": 120, "owl": 180}, count=8, seed=len(split))
    # A model is recommended for embeddings by the default probe at its own size; elsewhere a tiny probe will do.
    if "task2vec recommend" not in text:
        monkeypatch.setattr(t2v, "load_probe", lambda *args, **options: make_tiny())
    if "experiments/" in text:
        (tmp_path / "experiments").symlink_to(ROOT / "experiments")
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
            result = call(*words, *(cheap if words[0] == "embed" else []))
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
            targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
            assert set(words) <= set(targets)
        elif program == "pip":
            extras = [extra for word in words for part in re.findall(r"\[(.*?)\]", word) for extra in part.split(",")]
            assert set(extras) <= set(PROJECT["optional-dependencies"])


def parse(words: list[str]) -> None:
    """Walk the commands and read the options as the command line does, and stop before anything is done."""
    command = typer.main.get_command(app)
    context = command.make_context("task2vec", list(words))
    while hasattr(command, "commands"):
        words = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)


def test_what_is_spelt_wrong_and_what_nobody_runs_is_found():
    for words in (["embed", "x", "--sise", "3"], ["library", "lst"], ["serf"]):
        error = refuse(Exception, "No such", parse, words)  # typer has click's errors under a name of its own
        assert type(error).__name__ in ("NoSuchOption", "UsageError")
    text = "Words.\n```sh\nray start --head\n```\n<!-- not run: it takes an hour -->\n```python\n1 / 0\n```\n"
    text += "```text\nx = y\n```\n```\n$ task2vec ls; task2vec models  # two\nnothing\n```\n"
    ray, python, shown = read_snippets(ROOT / "x.md", text)
    refuse(AssertionError, "nobody runs ray", run_shell, ray)
    assert [ray.reason, python.reason, shown.reason] == [None, "it takes an hour", None]
    assert shown.commands() == [["task2vec", "ls"], ["task2vec", "models"]]
    for wrong, words in (("```bash\nls\n```\n", "'bash'"), ("Words.\n\n    ls\n", "indented")):
        refuse(ValueError, words, read_snippets, ROOT / "x.md", wrong)


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_links_and_files_of_the_repository_exist(document):
    text = document.read_text(encoding="utf-8")
    links = [document.parent / link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    links += [ROOT / name for name in re.findall(r"\b(?:benchmarks|experiments|src|tests)/[\w/]+\.py\b", text)]
    assert [link for link in links if not link.exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.parent != ROOT and page.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index and page.parts[0] != "results"] == []


# --- the README, figures and the notebook ---


def test_the_readme_is_short_and_its_tables_are_those_of_the_files():
    tables = load_script("docs/tables.py")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tables.fill(text) == text, "the tables have changed: python docs/tables.py"
    assert len(tables.BLOCK.findall(text)) == 1 and "4 proposed" in tables.make_table()
    assert len(text.split()) <= 900  # short enough to be read


def test_the_package_is_cited_with_its_version_and_make_help_names_every_target():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert PROJECT["dynamic"] == ["version"]  # hatch reads it from the package
    assert f"\nversion: {t2v.__version__}\n" in citation and f"\nlicense: {PROJECT['license']}\n" in citation
    for target in ("demo", "test", "test-all", "check", "format", "bench", "paper", "package", "docs", "clean"):
        assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE), target


def test_every_figure_of_the_page_is_drawn_by_the_script(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", "figure")  # other tests may draw small ones
    drawn = {path.name: path for path in load_script("docs/figures/make.py").draw_all(tmp_path)}
    page = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*/*.md"))
    assert set(re.findall(r"\]\(\.\./figures/(\S+?\.png)\)", page)) == set(drawn)
    for name, path in drawn.items():
        kept = ROOT / "docs" / "figures" / name
        assert kept.stat().st_size < 100_000
        with Image.open(path) as new, Image.open(kept) as old:
            assert new.size == old.size and len(new.convert("L").getcolors(256)) > 4


NOTEBOOK = (ROOT / "docs" / "start" / "notebook.ipynb").read_text(encoding="utf-8")
CELLS = [cell for cell in json.loads(NOTEBOOK)["cells"] if cell["cell_type"] == "code"]
# Nothing of it may reach the network.
OFFLINE = """
import socket
def refuse(*_, **__):
    raise OSError("the notebook reaches for the network")
socket.socket.connect = socket.getaddrinfo = refuse
"""


@pytest.mark.long
def test_the_cells_of_the_notebook_run_and_it_shows_what_comes_out(tmp_path):
    script = "\n".join([OFFLINE, *("".join(cell["source"]) for cell in CELLS)])
    done = run_command(python=script, cwd=tmp_path, PYTHONWARNINGS="error::DeprecationWarning:__main__")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Start from" in done.stdout and "Library(5 tasks, 5 embeddings" in done.stdout
    assert not list(tmp_path.iterdir())
    assert len(NOTEBOOK) < 60_000 and all(cell["outputs"] for cell in CELLS)
    assert any("image/png" in output.get("data", {}) for cell in CELLS for output in cell["outputs"])
