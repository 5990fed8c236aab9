"""Progress on standard error: bars, or lines now and then where there is no terminal, or nothing."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str, int], Callable[[int], None]]
# Seconds between two lines where there is no terminal.
PAUSE = 30.0
# Seconds after which `track` shows its bar.
BAR_AFTER = 2.0


def silent(_: str, __: int) -> Callable[[int], None]:
    """A report that shows nothing."""
    return lambda done: None


@contextmanager
def show_progress(show: bool | Report) -> Iterator[Report]:
    """A function that opens a bar for a stage of so many steps and returns what advances it; a given one as it is."""
    if callable(show) or not show:
        yield show if callable(show) else silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield _print_lines()
        return
    columns = (
        TextColumn("{task.description:>9}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        known: dict[str, TaskID] = {}

        def report(stage: str, total: int) -> Callable[[int], None]:
            if stage in known:  # of another group of tasks: the same bar goes on
                before = next(bar for bar in bars.tasks if bar.id == known[stage])
                bars.update(known[stage], total=(before.total or 0) + total)
            else:
                known[stage] = bars.add_task(stage, total=total)
            return lambda done: bars.advance(known[stage], done)

        yield report


def _print_lines() -> Report:
    """A report that prints the progress of its stages from time to time."""
    totals: dict[str, int] = {}
    counts: dict[str, int] = {}
    begin = printed = time.monotonic()

    def advance(stage: str, done: int) -> None:
        nonlocal printed
        counts[stage] += done
        now = time.monotonic()
        if now - printed >= PAUSE:
            printed = now
            stages = ", ".join(f"{name} {counts[name]} of {total}" for name, total in totals.items())
            with suppress(BrokenPipeError):  # a closed pipe is no reason to stop working
                sys.stderr.write(f"{now - begin:.0f} s: {stages}\n")
                sys.stderr.flush()

    def report(stage: str, total: int) -> Callable[[int], None]:
        totals[stage] = totals.get(stage, 0) + total
        counts.setdefault(stage, 0)
        return lambda done: advance(stage, done)

    return report


def track(items: Iterable[T], total: int, *, what: str, progress: bool) -> Iterator[T]:
    """The items unchanged; if `progress`, with a bar on standard error once two seconds have passed."""
    step, begin = None, time.monotonic()
    with ExitStack() as stack:
        for count, item in enumerate(items, start=1):
            if step is not None:
                step(1)
            elif progress and time.monotonic() - begin > BAR_AFTER:  # most readings end before they need Rich
                step = stack.enter_context(show_progress(True))(what, total)
                step(count)
            yield item
