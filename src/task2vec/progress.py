"""Progress on standard error: bars, or lines now and then where there is no terminal, or nothing."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Event, Thread
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
def show_progress(show: bool | Report, *, pause: float = PAUSE) -> Iterator[Report]:
    """A function that opens a bar for a stage of so many steps and returns what advances it; a given one as it is.

    Where there is no terminal, a line shows every `pause` seconds how far it is, also while a stage makes no step.
    """
    if callable(show) or not show:
        yield show if callable(show) else silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console, begin, is_over = Console(stderr=True), time.monotonic(), Event()
    is_drawn = console.is_terminal or console.is_jupyter
    description = TextColumn("{task.description:>9}", markup=False)
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not is_drawn)
    known: dict[str, TaskID] = {}

    def print_lines() -> None:
        while not is_over.wait(pause):
            stages = ", ".join(f"{bar.description} {bar.completed:.0f} of {bar.total:.0f}" for bar in bars.tasks)
            with suppress(OSError, ValueError):  # a closed pipe is no reason to stop working
                sys.stderr.write(f"{time.monotonic() - begin:.0f} s: {stages or 'working'}\n")
                sys.stderr.flush()

    def report(stage: str, total: int) -> Callable[[int], None]:
        if stage not in known:
            known[stage] = bars.add_task(stage, total=0)
        before = bars.tasks[known[stage]].total or 0  # of another group of tasks: the same bar goes on
        bars.update(known[stage], total=before + total)
        return partial(bars.advance, known[stage])

    with ExitStack() as stack:
        if is_drawn:
            stack.enter_context(bars)
        else:
            Thread(target=print_lines, daemon=True).start()
            stack.callback(is_over.set)
        yield report


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
