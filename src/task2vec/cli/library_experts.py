"""`task2vec library experts | errors | rm-expert`: the experts of the library, and what was measured with them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.cautions import check_file
from task2vec.cli.library import DIGITS
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.shelf import open_if_any, open_known, place_of, word_empty
from task2vec.cli.speech import name_library, print_json
from task2vec.errors import NotInLibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.library import Expert, MeasuredError

EXPERTS_IN_TURN = ("location", "cost", "weights", "size")
ERRORS_IN_TURN = ("range", "seeds")


def experts(library: options.LibraryFolder = None, as_json: options.AsJson = False) -> None:
    """List the experts of the library."""
    opened = open_if_any(library)
    found: list[Expert] = []
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    if opened is not None:
        with opened:
            found = opened.experts()
            names = {task.fingerprint: task.name for task in opened.tasks()}
            counts = Counter(error.expert for error in opened.errors())
    if as_json:
        rows = [asdict(expert) | {"errors": counts[expert.name]} for expert in found]
        print_json({"library": str(place_of(library)), "count": len(rows), "experts": rows})
    elif found:
        _print_experts(found, names, counts)
    else:
        print(f"There is no expert in '{printable(place_of(library))}'. {name_library(_MAKE)}")


_MAKE = "Train one: task2vec train-expert FOLDER; or measure a model: task2vec error-matrix FOLDER --expert resnet34"


def _print_experts(found: "Sequence[Expert]", names: dict[str, str], counts: "Counter[str]") -> None:
    taught = [names.get(one.task, one.task[:DIGITS]) if one.task else "-" for one in found]
    print_columns(
        [
            Column("expert", tuple(printable(one.name) for one in found), "name", is_name=True, room=16),
            Column("trained on", tuple(map(printable, taught)), "trained on", is_name=True, room=10),
            Column("errors", tuple(str(counts[one.name]) for one in found), "errors", is_number=True),
            Column("size", tuple(_word(one.input_size, "{} px") for one in found), "size", is_number=True),
            Column("weights", tuple(_word(one.parameters, "{}") for one in found), "weights", is_number=True),
            Column("cost", tuple(_word(one.cost, "{:.2g} G") for one in found), "cost", is_number=True),
            Column("location", tuple(printable(one.location) for one in found), "location", is_name=True),
        ],
        in_turn=EXPERTS_IN_TURN,
    )


def _word(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def errors(
    task: Annotated[str | None, typer.Option(help="Only this task, by name or id.")] = None,
    expert: Annotated[str | None, typer.Option(help="Only on this expert.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Only by this protocol, or the one that has this part: half, 5.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Rows to show; default: all.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write them to this file instead.", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --csv.")] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """List the errors that were measured, each the mean over its seeds."""
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} shows nothing. Give 1 or more, or leave it out.")
    check_file(csv, option="--csv", is_forced=force)
    with open_known(library) as opened:
        fingerprint = None if task is None else opened.task(task).fingerprint
        names = {one.fingerprint: one.name for one in opened.tasks()}
        measured = opened.errors()
        key = None if protocol is None else find_protocol(protocol, {error.protocol for error in measured})
        asked = {"task": fingerprint, "expert": expert, "protocol": key}
        found = [
            error for error in measured if all(value in (None, getattr(error, name)) for name, value in asked.items())
        ]
        if csv is not None:
            from task2vec.select.evidence import metatask_from_library

            print(f"written: {printable(metatask_from_library(opened, errors=found).to_csv(csv))}")
            return
        is_empty = not len(opened)
    if as_json:
        rows = [asdict(error) | {"name": names[error.task]} for error in found[:limit]]
        print_json({"library": str(place_of(library)), "count": len(found), "errors": rows})
    elif found:
        _print_errors(found, names, limit)
    else:
        print(word_empty(library) if is_empty else f"No error fits. {name_library(_MEASURE)}")


_MEASURE = "See the experts: task2vec library experts; measure: task2vec error-matrix FOLDER --expert NAME"


def find_protocol(part: str, keys: set[str]) -> str:
    """The key of the only protocol that has a part.

    Example:
        >>> find_protocol("half", {"linear-2, train half, logistic, usual", "linear-2, train 5, logistic, usual"})
        'linear-2, train half, logistic, usual'
    """
    if part in keys:
        return part
    # "5" is the size of a training, and not a digit of "train 15" or "linear-5".
    fits = [key for key in sorted(keys) if part in key.split(", ") or f"train {part}" in key.split(", ")]
    fits = fits or [key for key in sorted(keys) if part in key]
    if len(fits) == 1:
        return fits[0]
    listed = "; ".join(fits or sorted(keys)) or "none"
    what = f"{len(fits)} protocols have" if fits else "no protocol has"
    raise NotInLibraryError(
        f"{what} '{part}' in its name, so it is unclear which errors are meant. There are: {listed}"
    )


def shorten_protocols(keys: "Sequence[str]") -> dict[str, str]:
    """What tells the protocols apart, by their keys: as few words as possible.

    Example:
        >>> list(
        ...     shorten_protocols(
        ...         ["linear-2, train half, logistic, usual", "linear-2, train 5, logistic, usual"]
        ...     ).values()
        ... )
        ['half', '5']
    """
    parts = {key: key.split(", ") for key in keys}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    told = {}
    for key, own in parts.items():
        is_training = [part for part in own if part.startswith("train ")]
        shown = [part for part in own if part not in common] if common else is_training
        told[key] = ", ".join(part.removeprefix("train ") for part in shown) or key
    return told if len(set(told.values())) == len(told) else {key: key for key in keys}


def _print_errors(found: "Sequence[MeasuredError]", names: dict[str, str], limit: int | None) -> None:
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    seeds: dict[str, set[int]] = defaultdict(set)
    for error in found:
        cells[error.task, error.expert, error.protocol].append(error.error)
        seeds[error.protocol].add(error.seed)
    shown: list[tuple[tuple[str, str, str], list[float]]] = list(cells.items())[:limit]
    short = shorten_protocols(sorted(seeds))
    ranges = tuple(
        f"{format_percent(min(own))} to {format_percent(max(own))}" if len(own) > 1 else "-" for _, own in shown
    )
    counts = [(len(own), len(seeds[cell[2]])) for cell, own in shown]
    # A mean over fewer seeds than others have is another mean: then the count is part of the error.
    means = tuple(
        format_percent(mean(own)) + (f" ({have} of {all_} seeds)" if have < all_ else "")
        for (_, own), (have, all_) in zip(shown, counts, strict=True)
    )
    print_columns(
        [
            Column("task", tuple(printable(names[cell[0]]) for cell, _ in shown), "name", is_name=True, room=10),
            Column("expert", tuple(printable(cell[1]) for cell, _ in shown), "expert", is_name=True, room=10),
            Column("train", tuple(printable(short[cell[2]]) for cell, _ in shown), "protocol", is_name=True, room=6),
            Column("error", means, "error", is_number=all(have == all_ for have, all_ in counts)),
            Column("seeds", tuple(str(have) for have, _ in counts), "seeds", is_number=True),
            Column("range", ranges, "range", is_number=True),
        ],
        in_turn=ERRORS_IN_TURN,
    )
    for key, word in short.items():
        print(f"{printable(word)}: {printable(key)}")
    if len(cells) > len(shown):
        print(f"and {len(cells) - len(shown)} more; --limit {len(cells)} shows all")


def rm_expert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The expert's name.")],
    with_errors: Annotated[
        bool, typer.Option("--with-errors", help="Also the errors that were measured with it.")
    ] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove an expert; its file of weights stays where it is."""
    with open_known(library) as opened:
        gone = sum(error.expert == name for error in opened.errors())
        opened.remove_expert(name, with_errors=with_errors)
    if as_json:
        report: dict[str, Any] = {"expert": name, "errors": gone}
        print_json(report)
    else:
        print(f"removed: expert {printable(name)}, {pluralize(gone, 'error')}")
