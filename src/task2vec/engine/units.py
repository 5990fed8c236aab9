"""What goes into an engine and what comes out: units of work, and their values one by one."""

import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from task2vec import errors
from task2vec.errors import Task2VecError, WorkError

# Of a traceback: as much as helps to find the place.
_FRAMES = 8


@dataclass(frozen=True)
class Unit:
    """One piece of work: its name in results and failures, and a plain value that says what is to be done.

    Units are idempotent: one whose process died is done again from its beginning.
    """

    key: str
    payload: Any


class Work(Protocol):
    """How units are done. It travels to each worker once and is opened there, so that what it loads stays warm."""

    def open(self) -> Callable[[Any], Iterable[Any]]:
        """A function from a payload to values, which are handed on one by one as they are finished."""
        ...


@dataclass(frozen=True)
class Failure:
    """Why a unit has no more values.

    Attributes:
        kind: the class of the error; of one that was raised on purpose, its name in `task2vec.errors`.
        message: its text.
        exit_code: what the command line would end with.
        attempts: how often the unit was begun.
        traceback: where it happened, for whoever looks for a mistake.
    """

    kind: str
    message: str
    exit_code: int = 1
    attempts: int = 1
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an error means, as plain values that travel.

        Example:
            >>> Failure.of(KeyError("weights")).kind
            'KeyError'
        """
        known = next((base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base), type(error))
        is_ours = isinstance(error, Task2VecError)
        return cls(
            kind=known.__name__ if is_ours else type(error).__name__,
            message=str(error),
            exit_code=error.exit_code if is_ours else Task2VecError.exit_code,
            traceback="".join(traceback.format_exception(error, limit=-_FRAMES, chain=False)),
        )

    def error(self) -> Task2VecError:
        """The error to raise or to tell: of its own class if it was raised on purpose, else `WorkError`.

        Example:
            >>> Failure("DataError", "no images", exit_code=3).error()
            DataError('no images')
            >>> Failure("ZeroDivisionError", "division by zero").error()
            WorkError('ZeroDivisionError: division by zero')
        """
        own = vars(errors).get(self.kind)
        if isinstance(own, type) and issubclass(own, Task2VecError):
            return own(self.message)
        return WorkError(f"{self.kind}: {self.message}")


@dataclass(frozen=True)
class Result:
    """One value of a unit, or its end.

    The values of a unit come in their order; those of different units come as they are finished. Then comes its end,
    once, without a value: `is_last`, with a `failure` if it has one. The values of a unit whose process died may come
    again, from the first; whoever keeps them keeps them by what they are.
    """

    key: str
    value: Any = None
    failure: Failure | None = None
    is_last: bool = False


class Engine(AbstractContextManager["Engine"]):
    """Does units of work; `with` it, so that its workers end."""

    @abstractmethod
    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """The values of all units as they are finished, and the end of each.

        A unit that fails is told, and the others go on. Units are asked for when somebody is free to begin them.
        Work that cannot be opened ends the run with its error. Whoever stops listening ends it, too.
        """

    def close(self) -> None:
        """Ends all workers, if there are any."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the engine."""
        self.close()
