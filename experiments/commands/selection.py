"""`python -m experiments.selection`: choosing an expert, as in the paper.

All of it is made from errors that were measured before and come with the package: no images, no weights, no network.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.console import make_app, open_page, print_claims, print_json, say, watch_steps
from task2vec.text import printable

if TYPE_CHECKING:
    from experiments.selection_settings import Made
    from task2vec.experts.metatask import MetaTask

HOW_TO_READ = (
    "Errors are those of linear classifiers on experts that saw neither images nor labels of the task. The optimum is "
    "chosen on other splits or images than it is measured on. Intervals are of 95 %, over tasks."
)
Out = Annotated[Path, typer.Option(help="Folder for figures and numbers.")]
Bundle = Annotated[Path | None, typer.Option(help="Another measured meta-task; default: the one of the package.")]
Curves = Annotated[
    Path | None, typer.Option("--curves", help="Errors by training size (CSV), where the meta-task has none.")
]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", help="Table 1: only these; repeat it for more. Default: all.")
]
Workers = Annotated[
    Literal["serial", "processes"], typer.Option("--backend", help="Tables: by this process, or by one for each core.")
]
OUT = Path("task2vec-selection")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Maker = Callable[["MetaTask", Path, Callable[[str], None]], "Made"]


def tables(
    out: Out = OUT,
    bundle: Bundle = None,
    strategy: Strategies = None,
    backend: Workers = "processes",
    as_json: AsJson = False,
) -> None:
    """Table 1 (ways of choosing) and Table 2 (choice of probe), as Markdown, figures and CSV."""
    table = partial(_table, strategies=strategy, backend=backend)
    _run({"table 1": table, "table 2": partial(_probes, backend=backend)}, out, bundle, as_json)


def violins(out: Out = OUT, bundle: Bundle = None, as_json: AsJson = False) -> None:
    """The errors of all experts on every task, with the selected and the generic one marked."""
    _run({"violins": _violins}, out, bundle, as_json)


def norms(out: Out = OUT, bundle: Bundle = None, as_json: AsJson = False) -> None:
    """The norm of every task against the error of its best expert."""
    _run({"norms": _norms}, out, bundle, as_json)


def curves(out: Out = OUT, bundle: Bundle = None, points: Curves = None, as_json: AsJson = False) -> None:
    """Errors by training size of the selected, the generic and the best expert."""
    _run({"curves": partial(_curves, table=points)}, out, bundle, as_json)


def matrix(out: Out = OUT, bundle: Bundle = None, as_json: AsJson = False) -> None:
    """All errors, coloured by the asymmetric distance, with the selected and the best expert framed."""
    _run({"matrix": _matrix}, out, bundle, as_json)


def make_all(
    out: Out = OUT,
    bundle: Bundle = None,
    points: Curves = None,
    strategy: Strategies = None,
    backend: Workers = "processes",
    as_json: AsJson = False,
) -> None:
    """All tables and figures about choosing an expert, in minutes."""
    makers: dict[str, Maker] = {
        "norms": _norms,
        "violins": _violins,
        "matrix": _matrix,
        "curves": partial(_curves, table=points),
        "table 1": partial(_table, strategies=strategy, backend=backend),
        "table 2": partial(_probes, backend=backend),
    }
    _run(makers, out, bundle, as_json, has_claims=True)


def _run(makers: dict[str, Maker], out: Path, bundle: Path | None, as_json: bool, *, has_claims: bool = False) -> None:
    """Makes one after the other, and tells what they say; on disk as well, if that is all that there is to say."""
    begin = time.perf_counter()
    say("loading the meta-task ...")
    from task2vec.experts.metatask import bundled_metatask, load_metatask
    from task2vec.plots import import_figure, make_folder

    import_figure()  # asked for now and not after minutes of work
    measured = bundled_metatask() if bundle is None else load_metatask(bundle)
    folder = make_folder(out)
    made = []
    with watch_steps(len(makers)) as advance:
        for name, make in makers.items():
            advance(f"{name} ...")
            made.append(make(measured, folder, _whisper))
    if has_claims:
        from experiments.selection_settings import write_claims

        made.append(write_claims(made, folder))
    report: dict[str, Any] = {
        "metatask": measured.name,
        "claims": [claim for one in made for claim in one.claims],
        "tables": [one.text for one in made if one.text],
        "missing": [words for one in made for words in one.missing],
        "files": [str(path) for one in made for path in one.files],
        "seconds": round(time.perf_counter() - begin, 1),
    }
    if as_json:
        return print_json(report)
    _print(report)


def _whisper(words: str) -> None:
    """Steps within a table: told where nobody watches a bar."""
    if not sys.stderr.isatty():
        say(printable(words))


def _print(report: dict[str, Any]) -> None:
    page = open_page()
    for text in report["tables"]:
        page.print(printable(text, keep_lines=True) + "\n", soft_wrap=True)
    told = f"({report['metatask']}, {report['seconds']:.0f} s)"
    print_claims(report, how_to_read=HOW_TO_READ, missing=report["missing"], cost=printable(told))


def _table(
    measured: "MetaTask",
    folder: Path,
    step: Callable[[str], None],
    strategies: Sequence[str] | None = None,
    backend: str = "serial",
) -> "Made":
    from experiments.selection_table import make_table

    return make_table(measured, folder, strategies=strategies, backend=backend, step=step)


def _probes(measured: "MetaTask", folder: Path, step: Callable[[str], None], backend: str = "serial") -> "Made":
    from experiments.selection_probes import make_probes

    return make_probes(measured, folder, backend=backend, step=step)


def _violins(measured: "MetaTask", folder: Path, step: Callable[[str], None]) -> "Made":
    from experiments.selection_violins import make_violins

    return make_violins(measured, folder)


def _norms(measured: "MetaTask", folder: Path, step: Callable[[str], None]) -> "Made":
    from experiments.selection_norms import make_norms

    return make_norms(measured, folder)


def _matrix(measured: "MetaTask", folder: Path, step: Callable[[str], None]) -> "Made":
    from experiments.selection_matrix import make_matrices

    return make_matrices(measured, folder)


def _curves(measured: "MetaTask", folder: Path, step: Callable[[str], None], table: Path | None = None) -> "Made":
    from experiments.selection_curves import make_curves

    return make_curves(measured, folder, table=table)


app = make_app(tables, violins, norms, curves, matrix, make_all)
