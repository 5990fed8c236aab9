"""Every error that task2vec raises on purpose.

Each one derives from `Task2VecError` and from the built-in error a caller would expect, and its text has three parts:
what is wrong (with the value and the path), why it matters, and the command or argument that fixes it. The class
carries the exit code of the command line: 2 bad usage, 3 bad data, 4 a damaged or incompatible file, 5 the environment.
"""


class Task2VecError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UsageError(Task2VecError, ValueError):
    """An argument that is not valid."""

    exit_code = 2


class ProbeError(UsageError):
    """A probe that cannot be used: unknown name, wrong head, random network or transform."""


class ProbeMismatchError(UsageError):
    """Embeddings of different probes were about to be compared."""


class SettingsMismatchError(UsageError):
    """Embeddings of one probe but of settings that change the scale were about to be compared."""


class DataError(Task2VecError, ValueError):
    """A dataset that cannot become a task."""

    exit_code = 3


class BadImagesError(DataError):
    """Too many images of a task cannot be read; `bad` lists them, `tasks` the tasks of a catalog that have them."""

    def __init__(self, message: str, bad: tuple = (), tasks: tuple[str, ...] = ()):
        super().__init__(message)
        self.bad = bad
        self.tasks = tasks


class TooFewClassesError(DataError):
    """Tasks of a catalog that have fewer than two classes with images; `tasks` lists their definitions."""

    def __init__(self, message: str, tasks: tuple = ()):
        super().__init__(message)
        self.tasks = tasks


class DataChangedError(DataError):
    """An image is no longer what it was when the task was read."""


class NotFiniteError(DataError, ArithmeticError):
    """A NaN or an infinity appeared; the text names the layer or the image."""


class WeightsError(Task2VecError, ValueError):
    """A file of weights that is damaged, unsafe, or made for another network."""

    exit_code = 3


class WeightsNotFoundError(Task2VecError, FileNotFoundError):
    """The weights of a probe are not on this machine, and nothing is downloaded unless requested."""

    exit_code = 5


class DatasetNotFoundError(Task2VecError, FileNotFoundError):
    """A dataset of a hub is not on this machine, and nothing is downloaded unless requested."""

    exit_code = 5


class EmbeddingFileError(Task2VecError, ValueError):
    """A saved embedding that is damaged, of another schema, or not an embedding at all."""

    exit_code = 4


class LibraryError(Task2VecError, ValueError):
    """A library, or an entry of it, that is damaged, of another schema, or no library at all."""

    exit_code = 4


class NotInLibraryError(UsageError, KeyError):
    """Nothing in the library has this name."""

    def __str__(self) -> str:
        """The text as it is; a KeyError would put it into quotes."""
        return str(self.args[0]) if self.args else ""


class AmbiguousNameError(UsageError):
    """Several entries of the library have this name."""


class UndefinedScoreError(DataError, ArithmeticError):
    """A transferability score that these images and labels do not determine."""


class ConflictError(DataError):
    """The library has something else under the same key, and does not overwrite it unless requested."""


class MissingExtraError(Task2VecError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 5


class ResourceError(Task2VecError, OSError):
    """The disk, the memory or a device is not sufficient."""

    exit_code = 5


class WorkError(Task2VecError, RuntimeError):
    """A unit of work failed unexpectedly; the text has the original error."""
