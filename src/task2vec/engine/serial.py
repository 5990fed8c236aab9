"""Units done one after the other, in this process."""

from collections.abc import Iterable, Iterator

from task2vec.engine.bench import perform
from task2vec.engine.messages import FAILED, VALUE
from task2vec.engine.threads import limit_threads
from task2vec.engine.units import Engine, Result, Unit, Work


class SerialEngine(Engine):
    """An engine without workers: nothing travels, so anything can be worked on."""

    def __init__(self, *, threads: int | None = None):
        """`threads` to compute with; None takes what is set."""
        self.threads = threads

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Engine.run`; what ends the process ends the run."""
        with limit_threads(self.threads):
            do = work.open()
            for unit in units:
                for word, content in perform(do, unit.payload, lambda value: value):
                    if word == VALUE:
                        yield Result(unit.key, content)
                    else:
                        yield Result(unit.key, failure=content if word == FAILED else None, is_last=True)
