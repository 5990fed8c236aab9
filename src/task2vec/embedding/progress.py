"""A progress bar on standard error for whoever wants one; silence otherwise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int], Callable[[int], None]]


def silent(_: str, __: int) -> Callable[[int], None]:
    """A report that shows nothing."""
    return lambda done: None


@contextmanager
def watch(show: bool) -> Iterator[Report]:
    """A function that opens a bar for a stage of so many steps and returns what moves it on."""
    if not show:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        known: dict[str, TaskID] = {}

        def report(stage: str, total: int) -> Callable[[int], None]:
            if stage in known:  # of another group of tasks: the same bar goes on
                before = next(bar for bar in bars.tasks if bar.id == known[stage])
                bars.update(known[stage], total=(before.total or 0) + total)
            else:
                known[stage] = bars.add_task(stage, total=total)
            return lambda done: bars.advance(known[stage], done)

        yield report
