"""Labels of all images of a catalogue: one class each, or many attributes each as bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.errors import DataError

UNKNOWN = -1
# Rows whose bits are unpacked at a time, so that a table of 290,000 x 1,000 never stands in memory as bytes.
_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class ClassTable:
    """One class per image.

    Attributes:
        numbers: (images,) the class of every image, as a row of `names`.
        names: What each class is called; no name occurs twice.

    Example:
        >>> table = ClassTable(np.array([2, 0, 0, 1]), ("raven", "robin", "wren"))
        >>> rows, labels = table.select((0, 2))
        >>> rows.tolist(), labels.tolist()
        ([0, 1, 2], [1, 0, 0])
    """

    numbers: np.ndarray
    names: tuple[str, ...]

    def __post_init__(self):
        """Refuse numbers without a name, and names that mean two classes."""
        _check_names(self.names)
        wrong = self.numbers.ndim != 1 or self.numbers.dtype.kind not in "iu"
        if wrong or (self.numbers.size and not 0 <= self.numbers.min() <= self.numbers.max() < len(self.names)):
            raise DataError(
                f"the class numbers of {len(self.numbers)} images are not whole numbers from 0 to "
                f"{len(self.names) - 1}, so some image has no class. Number the classes by their place in names."
            )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.numbers)

    def select(self, members: Sequence[int], among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the images of these classes (among some rows), and for each its class as a place in `members`."""
        place = np.full(len(self.names), -1, np.int64)
        place[list(members)] = np.arange(len(members))
        labels = place[self.numbers if among is None else self.numbers[among]]
        found = np.flatnonzero(labels >= 0)
        return found if among is None else among[found], labels[found]


@dataclass(frozen=True, eq=False)
class AttributeTable:
    """Yes, no or unknown for every image and attribute, as bits: 290,000 x 1,000 take 36 MB, or 72 with unknown ones.

    Attributes:
        positive: (images, attributes / 8 rounded up) `numpy.packbits(yes, axis=1)`.
        known: The same for "yes or no"; None if nothing is unknown.
        names: What each attribute is called; no name occurs twice.
        groups: What each attribute belongs to, such as "color"; "" for nothing.

    Example:
        >>> yes = np.array([[True, False], [False, False], [True, True]])
        >>> known = np.array([[True, True], [True, False], [True, True]])
        >>> table = AttributeTable.pack(yes, ("red", "floral"), known=known)
        >>> table.column(1).tolist()
        [0, -1, 1]
        >>> [numbers.tolist() for numbers in table.count(np.arange(3))]
        [[2, 1], [3, 2]]
    """

    positive: np.ndarray
    known: np.ndarray | None
    names: tuple[str, ...]
    groups: tuple[str, ...] = ()

    def __post_init__(self):
        """Refuse bits that do not fit the names, or that call an unknown attribute positive."""
        _check_names(self.names)
        if not self.groups:
            object.__setattr__(self, "groups", ("",) * len(self.names))
        width = -(-len(self.names) // 8)
        for bits in (self.positive, self.known):
            if bits is not None and (bits.dtype != np.uint8 or bits.shape != (len(self.positive), width)):
                raise DataError(
                    f"the attributes have {bits.dtype} bits of shape {bits.shape}, and {len(self.positive)} images "
                    f"with {len(self.names)} attributes need uint8 of shape ({len(self.positive)}, {width}): values "
                    "would stand in the wrong columns. Pack them with numpy.packbits(values, axis=1)."
                )
        torn = len(self.groups) != len(self.names)
        if torn or (self.known is not None and (self.positive & ~self.known).any()):
            what = f"{len(self.groups)} groups" if torn else "positive values that are unknown"
            raise DataError(f"a table of {len(self.names)} attributes has {what}, so they are torn. Mend the reader.")

    @staticmethod
    def pack(
        positive: np.ndarray, names: Sequence[str], *, known: np.ndarray | None = None, groups: Sequence[str] = ()
    ) -> "AttributeTable":
        """The table of boolean arrays (images, attributes)."""
        bits = None if known is None else np.packbits(known, axis=1)
        return AttributeTable(np.packbits(positive, axis=1), bits, tuple(names), tuple(groups))

    def __len__(self) -> int:
        """The number of images."""
        return len(self.positive)

    def column(self, number: int, among: np.ndarray | None = None) -> np.ndarray:
        """int8 of all images, or of some rows: 1 where the attribute is positive, 0 negative, -1 unknown."""
        yes = _bit(self.positive, number, among)
        return yes if self.known is None else np.where(_bit(self.known, number, among), yes, np.int8(UNKNOWN))

    def columns(self, rows: np.ndarray) -> Callable[[int], np.ndarray]:
        """What `column` gives at these rows, for many attributes in turn: the bits are put in their order once."""
        positive, known = (
            None if bits is None else np.ascontiguousarray(bits[rows].T).T for bits in (self.positive, self.known)
        )
        assert positive is not None
        return AttributeTable(positive, known, self.names, self.groups).column

    def select(self, members: Sequence[int], among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The rows (among some) of which all these attributes are known, and (rows, members) of 0 and 1."""
        rows = self.find_known(members, among)
        values = np.empty((len(rows), len(members)), np.uint8)
        for start, bits in _blocks(self.positive, rows, len(self.names)):
            values[start : start + len(bits)] = bits[:, list(members)]
        return rows, values

    def find_known(self, members: Sequence[int], among: np.ndarray | None = None) -> np.ndarray:
        """The rows (among some) of which all these attributes are known."""
        rows = np.arange(len(self)) if among is None else among
        if self.known is None:
            return rows
        mask = self._mask(members)
        return rows[np.all((self.known[rows] & mask) == mask, axis=1)]

    def has_any(self, members: Sequence[int], rows: np.ndarray) -> np.ndarray:
        """For each of the rows, whether one of these attributes is positive."""
        return np.any(self.positive[rows] & self._mask(members), axis=1)

    def _mask(self, members: Sequence[int]) -> np.ndarray:
        """The bits of these attributes."""
        is_member = np.zeros(len(self.names), bool)
        is_member[list(members)] = True
        return np.packbits(is_member)

    def count(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(attributes,) how many of the images in `rows` are positive, and of how many it is known."""
        width = len(self.names)
        positive = _count_bits(self.positive, rows, width)
        known = np.full(width, len(rows), np.int64) if self.known is None else _count_bits(self.known, rows, width)
        return positive, known


LabelTable = ClassTable | AttributeTable


def _bit(bits: np.ndarray, number: int, among: np.ndarray | None) -> np.ndarray:
    """One column of packed bits as int8; the first of eight is the highest."""
    column = bits[:, number // 8] if among is None else bits[among, number // 8]
    return ((column >> (7 - number % 8)) & 1).astype(np.int8)


def _blocks(bits: np.ndarray, rows: np.ndarray, width: int) -> Iterator[tuple[int, np.ndarray]]:
    """The unpacked bits of the rows, some at a time, each with the place of its first."""
    for start in range(0, len(rows), _ROWS):
        yield start, np.unpackbits(bits[rows[start : start + _ROWS]], axis=1, count=width)


def _count_bits(bits: np.ndarray, rows: np.ndarray, width: int) -> np.ndarray:
    """How many bits of every column are set in the rows."""
    total = np.zeros(width, np.int64)
    for _, block in _blocks(bits, rows, width):
        total += block.sum(axis=0, dtype=np.int64)
    return total


def _check_names(names: Sequence[str]) -> None:
    """Raise `DataError` if a name occurs twice: nobody could say which of the two is meant."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two columns or classes are called {twice!r}, so one cannot be asked for. Rename one of them.")
