"""A progress bar for reading that takes long enough to deserve one."""

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 2.0


def watched(items: Iterable[T], total: int, *, what: str, progress: bool) -> Iterator[T]:
    """The items unchanged; if `progress`, with a bar on standard error once two seconds have passed."""
    bar = None
    begin = monotonic()
    try:
        for count, item in enumerate(items, start=1):
            if progress and bar is None and monotonic() - begin > PATIENCE_SECONDS:
                bar = _start_bar(what, total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=count)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(what: str, total: int):
    """A running bar; rich is imported here because most readings end before they need it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
