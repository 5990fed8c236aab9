"""A bar on standard error for commands of many steps; plain lines where nobody watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from task2vec.cli.speech import is_watched, say
from task2vec.text import printable


@contextmanager
def watch_steps(total: int) -> Iterator[Callable[[str], None]]:
    """A function to call at the start of each step; draws a bar if somebody is watching."""
    if not is_watched():
        yield lambda step: say(step)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=total)
        steps = iter(range(total + 1))
        yield lambda step: bar.update(line, completed=next(steps), description=step)


def say_once(advance: Callable[[str], None]) -> Callable[[str], None]:
    """Tells steps of the same name in a row once, where they would be lines; a bar wants them all."""
    if is_watched():
        return lambda step: advance(printable(step))
    told = [""]

    def tell(step: str) -> None:
        if step != told[-1]:
            advance(printable(step))
            told.append(step)

    return tell
