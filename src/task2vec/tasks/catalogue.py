"""A published dataset by its own annotation files: every task it holds, and no image opened before one is asked for.

A reader (`read_inaturalist`, ...) parses the annotations into a `Catalogue`; a task is read from it by name. Only then
are its files read, hashed and decoded, as those of any folder are.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import numpy as np

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.progress import track
from task2vec.tasks.check import quote
from task2vec.tasks.choosing import Choice, Draw, choose, draw_together, select, settle, tell_hopeless
from task2vec.tasks.definitions import Splits, TaskDefinition
from task2vec.tasks.files import assemble, join_failures, survey
from task2vec.tasks.label_tables import AttributeTable, LabelTable
from task2vec.tasks.paths import Paths
from task2vec.tasks.task import Task
from task2vec.tasks.taxonomy import Taxonomy


@dataclass(frozen=True, eq=False, repr=False)
class Catalogue:
    """The images, labels, splits and tasks of a published dataset; print it to see what it holds.

    Attributes:
        name: What to call it; the names of its tasks begin with it.
        root: The folder that the paths begin in.
        paths: Where every image lies below the root.
        splits: The split of every image.
        tables: The labels of every image, by the name of the table; most datasets have one, "labels".
        definitions: The tasks.
        sources: The annotation files that were read.
        taxonomy: The tree above the classes, where the dataset has one.
        warnings: What looks odd in the annotations and was accepted.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from task2vec.tasks.definitions import define_attributes
        >>> table = AttributeTable.pack(np.array([[1], [0], [1], [0]], bool), ("red",))
        >>> splits = Splits(np.array([0, 0, 0, 1], np.uint8), ("train", "val"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = [f"{number}.png" for number in range(4)]
        ...     for number, path in enumerate(paths):
        ...         Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(Path(folder, path))
        ...     dresses = Catalogue(
        ...         "dresses", Path(folder), paths, splits, {"labels": table}, define_attributes(table, splits)
        ...     )
        ...     task = dresses.task("red", split="train")
        >>> dresses
        Catalogue(dresses, 4 images, train and val, tasks: 1 attribute)
        >>> task, task.classes
        (Task(dresses: red (train), 3 images, 2 classes), ('not red', 'red'))
    """

    name: str
    root: Path
    paths: Sequence[str]
    splits: Splits
    tables: Mapping[str, LabelTable]
    definitions: tuple[TaskDefinition, ...]
    sources: tuple[str, ...] = ()
    taxonomy: Taxonomy | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self):
        """Refuse parts that do not fit each other, so that no reader can shift a label."""
        if not isinstance(self.paths, Paths):
            object.__setattr__(self, "paths", Paths.pack(self.paths))
        object.__setattr__(self, "root", Path(os.path.realpath(self.root)))
        lengths = {"paths": len(self.paths), "splits": len(self.splits.codes)}
        lengths |= {f"table {name!r}": len(table) for name, table in self.tables.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(
                f"{self.name}: its parts are of different lengths ({told}), so labels would be shifted. Give each of "
                "them one entry per image."
            )
        wrong = np.flatnonzero(self.splits.codes >= len(self.splits.names))
        if len(wrong):
            raise DataError(
                f"{self.name}: {self.paths[int(wrong[0])]!r} has the split code {self.splits.codes[wrong[0]]}, and the "
                f"splits are {list(self.splits.names)}: nobody knows whether to train on it. Take the published file."
            )
        self._check_definitions()

    def _check_definitions(self) -> None:
        """Raise `DataError` if a definition means a class that is not there, or two have one name."""
        twice = [pair for pair, times in Counter((one.kind, one.name) for one in self.definitions).items() if times > 1]
        if twice:
            raise DataError(f"{self.name}: two tasks are called {twice[0]}, so one cannot be asked for. Rename one.")
        for one in self.definitions:
            table = self.tables.get(one.table)
            if table is None or not all(0 <= number < len(table.names) for number in one.members):
                raise DataError(
                    f"{self.name}: {one} means classes that the table {one.table!r} does not have, so its images are "
                    "unknown. Number its members by their place in the table."
                )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.paths)

    def __repr__(self) -> str:
        """The catalogue in one line."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in self.definitions).items())
        return f"Catalogue({self.name}, {len(self)} images, {' and '.join(self.splits.names)}, tasks: {kinds})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its tasks."""
        return tuple(dict.fromkeys(one.kind for one in self.definitions))

    def of_kind(self, kind: str) -> tuple[TaskDefinition, ...]:
        """All tasks of a kind, in the order of the reader."""
        if kind not in self.kinds:
            raise UsageError(f"{self.name} has no tasks of kind {kind!r}. Choose one of {list(self.kinds)}.")
        return tuple(one for one in self.definitions if one.kind == kind)

    def find(self, name: str | TaskDefinition, kind: str | None = None) -> TaskDefinition:
        """The definition of that name; if none or several have it, it is refused with what could be meant.

        Args:
            name: The name as in `definitions`.
            kind: The kind of task, where several have the name.
        """
        if isinstance(name, TaskDefinition):
            if name not in self.definitions:
                raise UsageError(f"{name} is not one of {self.name}. Take a definition from this catalogue.")
            return name
        among = self.definitions if kind is None else self.of_kind(kind)
        found = [one for one in among if one.name == name]
        if len(found) > 1:
            kinds = [one.kind for one in found]
            raise UsageError(f"{self.name} has several tasks {name!r}. Say which (kind=, --kind), one of {kinds}.")
        if not found:
            lowered = {one.name.lower(): one.name for one in among}
            close = [lowered[match] for match in get_close_matches(str(name).lower(), lowered, n=5)]
            hint = (
                f"Did you mean {quote(close)}?"
                if close
                else f"Its definitions, or `task2vec tasks {self.root}`, list them."
            )
            of = "" if kind is None else f" of kind {kind!r}"
            raise UsageError(f"{self.name} has no task {name!r}{of} among its {len(among)}. {hint}")
        return found[0]

    def name_task(self, name: str, split: str | None = None) -> str:
        """What a task of that name is called once it is read: after the catalogue, and by the split if it is one's."""
        return f"{self.name}: {name}{'' if split is None else f' ({split})'}"

    def task(
        self,
        name: str | TaskDefinition,
        *,
        kind: str | None = None,
        split: str | None = None,
        images: int | None = None,
        seed: int = 0,
        least: int = 10,
        allow_bad: bool = False,
        workers: int | None = None,
        progress: bool = False,
    ) -> Task:
        """One task, with its images read, hashed and decoded once.

        Args:
            name: The name of a definition, or the definition.
            kind: The kind of task, where several have the name.
            split: The images of one split, such as "train"; of all if not given.
            images: Draw that many without replacement, each class its equal share as far as it has images; of a group
                of attributes as `tasks` does. All if not given.
            seed: Another seed draws other images.
            least: For a group of attributes: what each should have of positive and of negative images.
            allow_bad: Go on when more than 5 % of the images cannot be read.
            workers: Threads that decode; chosen by the number of processors if not given. It does not change the task.
            progress: Show a progress bar when reading takes longer than two seconds.

        Raises:
            BadImagesError: More than 5 % of the images cannot be read, and `allow_bad` is false.
            DataError: Fewer than two classes have images in the split.
            UsageError: There is no such task or split.
        """
        definition = self.find(name, kind)
        draw = Draw(images, seed, least, split)
        choice = choose(self.tables[definition.table], definition, self.splits.rows(split), draw)
        return self._read([choice], draw, allow_bad, workers, progress)[0]

    def tasks(
        self,
        names: Sequence[str | TaskDefinition] | None = None,
        *,
        kind: str | None = None,
        split: str | None = None,
        images: int | None = None,
        seed: int = 0,
        least: int = 10,
        allow_bad: bool = False,
        workers: int | None = None,
        progress: bool = False,
    ) -> list[Task]:
        """Several tasks; a file that they share is read, hashed and decoded once.

        Tasks by class are drawn one by one, `images` for each. Tasks by attribute share one draw of `images`, so that
        all of them can be embedded in the same passes: every attribute, the rarest first, gets up to `least` positive
        and `least` negative images, and chance fills the rest. An attribute's task is then made of the drawn images of
        which it is known.

        Args:
            names: Names or definitions; all of the kind if not given.
            kind: The kind of tasks; needed where `names` are not given and there are several kinds.
            split: As for `task`.
            images: As for `task`, but one draw for all attributes.
            seed: As for `task`.
            least: What every attribute should have of positive and of negative images in the common draw.
            allow_bad: As for `task`.
            workers: As for `task`.
            progress: As for `task`.

        Raises:
            BadImagesError: More than 5 % of the images of some task cannot be read, and `allow_bad` is false; all such
                tasks are named, and none of the others is given.
            NothingToTellError: Some of the tasks have fewer than two classes in the split or draw; all of them are
                named, and it holds their definitions.
        """
        if isinstance(names, str):
            raise UsageError(f"one name, {names!r}, was given where a list is expected. Pass [{names!r}], or use task.")
        if names is None:
            if kind is None and len(self.kinds) > 1:
                kinds = list(self.kinds)
                raise UsageError(f"{self.name} has tasks of several kinds. Say which (kind=, --kind), one of {kinds}.")
            wanted = list(self.definitions if kind is None else self.of_kind(kind))
        else:
            wanted = [self.find(name, kind) for name in names]
        rows, draw = self.splits.rows(split), Draw(images, seed, least, split)
        choices: dict[TaskDefinition, Choice] = {}
        for name, table in self.tables.items():
            here = [one for one in wanted if one.table == name]
            if isinstance(table, AttributeTable) and here:
                common = draw_together(table, here, rows, draw)
                choices |= {one: select(table, one, common) for one in here}
            else:
                choices |= {one: choose(table, one, rows, draw) for one in here}
        return self._read([choices[one] for one in wanted], draw, allow_bad, workers, progress)

    def _read(
        self, choices: Sequence[Choice], draw: Draw, allow_bad: bool, workers: int | None, progress: bool
    ) -> list[Task]:
        """The tasks of rows and labels; every file is looked at once."""
        settled = [settle(choice) for choice in choices]
        hopeless = tuple(choice.definition for choice, one in zip(choices, settled, strict=True) if one is None)
        if hopeless:
            raise tell_hopeless(self.name, hopeless, len(choices), draw.split)
        rows = np.unique(np.concatenate([choice.rows for choice in choices])) if choices else np.zeros(0, np.int64)
        paths = [self.paths[int(row)] for row in rows]
        watch = partial(track, total=len(paths), what=f"reading {self.name}", progress=progress)
        outcomes = survey(self.root, paths, workers=workers, watch=watch)
        source = "; ".join(filter(None, (", ".join(self.sources) or str(self.root), draw.tell())))
        tasks, failed = [], {}
        for choice, (labels, classes, remarks) in zip(choices, filter(None, settled), strict=True):
            places = np.searchsorted(rows, choice.rows).tolist()
            try:
                task = assemble(
                    self.root,
                    [paths[place] for place in places],
                    labels,
                    [outcomes[place] for place in places],
                    classes=classes,
                    name=self.name_task(choice.definition.name, draw.split),
                    source=source,
                    allow_bad=allow_bad,
                    remarks=remarks,
                )
            except BadImagesError as error:
                failed[choice.definition.name] = error
            else:
                tasks.append(task)
        if failed:
            raise join_failures(self.name, failed, len(choices))
        return tasks
