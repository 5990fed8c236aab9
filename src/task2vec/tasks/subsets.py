"""Tasks made from tasks: some of the classes, one task per taxon, one-vs-rest, samples, splits, batches and unions.

All of them refer to the images of the tasks they come from; nothing is read again.

Samples and splits are stratified and depend on the content alone: images are ranked by a SHA-256 of seed and content,
and ties between classes are broken by the classes' own content. So they are the same whatever the order of the images,
the numbers and names of the classes or the version of a random generator, and identical images always stay together.
"""

import difflib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.images import JoinedImages, choose_images
from task2vec.tasks.task import Task, canonical_order, find_copies, find_warnings, quote, renumber
from task2vec.tasks.taxonomy import Taxonomy

MAX_BATCHES = 20
_ATTEMPTS = 64


class TasksByTaxon(dict[str, Task]):
    """The tasks of a rank by the name of their taxon, in the order of the classes.

    Attributes:
        level: The rank.
        left_out: Why every other taxon, and the classes without one, make no task.
    """

    def __init__(self, level: str, tasks: Mapping[str, Task], left_out: Mapping[str, str]):
        super().__init__(tasks)
        self.level, self.left_out = level, left_out

    def __repr__(self) -> str:
        """The tasks in one line."""
        return f"TasksByTaxon({self.level}, {len(self)} tasks, {len(self.left_out)} left out)"


def select_classes(task: Task, classes: Sequence[str | int], name: str | None) -> Task:
    """The task of some classes, by name or number; for multi-label, of some columns and all images."""
    if isinstance(classes, (str, int)):
        raise UsageError(f"select needs a list of classes and got {classes!r}. Pass [{classes!r}, ...].")
    found = [_find_class(task, kind) for kind in classes]
    fewest = 1 if task.is_multilabel else 2
    if len(set(found)) < max(len(found), fewest):
        raise UsageError(
            f"select needs {fewest} or more classes of '{task.name}', each once, and got {list(classes)}. Name them; "
            "one_vs_rest() makes a binary task of each class."
        )
    return _keep_classes(task, sorted(found), task.name if name is None else name, inherit_warnings(task))


def _find_class(task: Task, kind: str | int) -> int:
    """The number of one class; an unknown or ambiguous name is refused with close matches."""
    is_number = isinstance(kind, (int, np.integer)) and not isinstance(kind, bool)
    numbers = [n for n, name in enumerate(task.classes) if (n == kind if is_number else name == kind)]
    if len(numbers) == 1:
        return numbers[0]
    if numbers:
        raise UsageError(f"{len(numbers)} classes of '{task.name}' are called {kind!r}. Give a number: {numbers}.")
    close = difflib.get_close_matches(str(kind), task.classes, n=3) or list(task.classes[:3])
    raise UsageError(
        f"'{task.name}' has no class {kind!r} among its {len(task.classes)}, numbered from 0. Similar or first: "
        f"{quote(close)}. For a mask, pass numpy.flatnonzero."
    )


def divide_by_taxon(task: Task, level: str, taxonomy: Taxonomy) -> TasksByTaxon:
    """One task per taxon of a rank, between its classes."""
    members = taxonomy.group(task.classes, level)
    names, inherited = _name_taxa(members), inherit_warnings(task)
    tasks, left_out = {}, {}
    for taxon, numbers in members.items():
        classes = [task.classes[number] for number in numbers]
        if not taxon:
            left_out[f"no {level}"] = f"{len(classes)} classes have none: {quote(classes)}"
        elif len(classes) < 2:
            left_out[names[taxon]] = f"it has a single class with images, {classes[0]!r}"
        else:
            tasks[names[taxon]] = _keep_classes(task, numbers, f"{task.name}: {names[taxon]}", inherited)
    return TasksByTaxon(level, tasks, left_out)


def merge_by_taxon(task: Task, level: str, taxonomy: Taxonomy, name: str | None) -> Task:
    """The task whose classes are the taxa of a rank; images of classes without a taxon there are left out."""
    if task.is_multilabel:
        raise UsageError(
            f"'{task.name}' is multi-label, so an image may belong to several taxa at once. Use by_taxon for the "
            "attributes of each group."
        )
    members = taxonomy.group(task.classes, level)
    lost, names = members.pop((), []), _name_taxa(members)
    warnings = inherit_warnings(task)
    if lost:
        n_lost = int(np.isin(task.targets, lost).sum())
        classes = quote([task.classes[number] for number in lost])
        warnings += (f"classes without {level}, left out with {n_lost} images: {classes}",)
    name = f"{task.name} by {level}" if name is None else name
    return _relabel(task, list(members.values()), list(names.values()), name, warnings)


def make_one_vs_rest(task: Task) -> tuple[Task, ...]:
    """One binary task per class or attribute on the same images: ("not X", "X")."""
    inherited = inherit_warnings(task)
    copies = find_copies(task.digests)
    tasks = []
    for number, kind in enumerate(task.classes):
        is_it = task.targets[:, number] if task.is_multilabel else task.targets == number
        targets, classes = is_it.astype(np.int64), (f"not {kind}", kind)
        warnings = (*inherited, *find_warnings(targets, classes, task.digests, task.images.name, copies=copies))
        tasks.append(replace(task, name=f"{task.name}: {kind}", targets=targets, classes=classes, warnings=warnings))
    return tuple(tasks)


def inherit_warnings(task: Task) -> tuple[str, ...]:
    """The warnings of a task that hold for its parts too: all but those about its own counts and copies."""
    own = find_warnings(task.targets, task.classes, task.digests, task.images.name) if task.warnings else ()
    return tuple(warning for warning in task.warnings if warning not in own)


def _name_taxa(members: Mapping[tuple[str, ...], object]) -> dict[tuple[str, ...], str]:
    """The name of each taxon, or its whole lineage where two of the rank have one name."""
    times = Counter(taxon[-1] for taxon in members if taxon)
    return {
        taxon: taxon[-1] if times[taxon[-1]] == 1 else " > ".join(filter(None, taxon)) for taxon in members if taxon
    }


def _keep_classes(task: Task, kept: list[int], name: str, warnings: tuple[str, ...]) -> Task:
    """The task of the classes `kept`: their images, or for multi-label their columns."""
    classes = tuple(task.classes[number] for number in kept)
    if not task.is_multilabel:
        return _relabel(task, [[number] for number in kept], classes, name, warnings)
    targets = task.targets[:, kept]
    warnings = (*warnings, *find_warnings(targets, classes, task.digests, task.images.name))
    return replace(task, name=name, targets=targets, classes=classes, warnings=warnings)


def _relabel(
    task: Task, groups: Sequence[Sequence[int]], classes: Sequence[str], name: str, warnings: tuple[str, ...]
) -> Task:
    """The single-label task whose classes are groups of the old ones, of the images that have one."""
    new_number = np.full(len(task.classes), -1)
    for number, old in enumerate(groups):
        new_number[list(old)] = number
    targets = new_number[task.targets]
    rows = np.flatnonzero(targets >= 0)
    targets, images = targets[rows], choose_images(task.images, rows.tolist())
    digests = tuple(task.digests[row] for row in rows)
    warnings = (*warnings, *find_warnings(targets, classes, digests, images.name))
    changes = {"name": name, "images": images, "targets": targets, "classes": tuple(classes), "digests": digests}
    try:
        return replace(task, **changes, warnings=warnings)
    except DataError as error:
        raise DataError(f"subset of '{task.name}': {error}") from None


# --- samples and splits ----------------------------------------------------------------------------------------------


def sample_images(task: Task, n: int, seed: int) -> Task:
    """`n` images of a task: every class keeps its share of them, and one image at least."""
    fewest = 1 if task.is_multilabel else len(task.classes)
    if not fewest <= n <= len(task):
        raise UsageError(
            f"{n} images cannot be sampled from '{task.name}': it has {len(task)}, of {len(task.classes)} classes that "
            f"each keep one. Choose {fewest} to {len(task)}."
        )
    groups = _Groups(task, f"sample {seed}", together=False)
    if task.is_multilabel:
        rows = np.flatnonzero(groups.mask_rows(_cover(groups.has, n, leave_some=False)))
    else:
        sizes = np.bincount(groups.strata, minlength=len(task.classes))
        counts = share_out(sizes, n, least=np.minimum(sizes, 1), most=sizes)
        rows = np.flatnonzero(groups.mask_rows(_first_of_each(groups.strata, counts)))
    if len(rows) > n:
        raise DataError(
            f"{n} images are too few for '{task.name}': {len(rows)} are needed for a positive and a negative image of "
            f"each of its {len(task.classes)} attributes. Choose {len(rows)} or more, or select fewer attributes."
        )
    return _take(task, rows, f"a sample of {n}")


def split_images(task: Task, seed: int, test: float) -> tuple[Task, Task]:
    """Two tasks of disjoint content, the second with the share `test` of every class."""
    if isinstance(test, bool) or not 0 < test < 1:
        raise UsageError(f"test={test!r} is not a share of the images. Pass a number between 0 and 1, such as 0.2.")
    is_test = _choose_test(task, seed, test)
    train, held_out = (_make_side(task, mask, side) for side, mask in (("train", ~is_test), ("test", is_test)))
    return train, held_out


def choose_half(task: Task, seed: int) -> np.ndarray:
    """A mask of half of the images, of every class separately, rounded down.

    Identical images are all in it, or none, and none if they carry different labels. Attributes have positive and
    negative images on both sides; their images are halved as a whole.
    """
    return _choose_test(task, seed, None)


def _choose_test(task: Task, seed: int, test: float | None) -> np.ndarray:
    """A mask of the images of the share `test`; None takes half of every class, rounded down."""
    groups = _Groups(task, f"split {seed}", together=True)
    wanted = max(len(groups) // 2 if test is None else round(test * len(groups)), 1)
    if task.is_multilabel:
        _refuse_rare(task, groups)
        return groups.mask_rows(_cover(groups.has, wanted, leave_some=True))
    # Identical images under different labels stay in the training part: no prediction would be right on both.
    sizes = np.bincount(groups.strata[groups.strata >= 0], minlength=len(task.classes))
    most = np.maximum(sizes - 1, 0)
    most[groups.conflicting] = sizes[groups.conflicting]
    counts = sizes // 2 if test is None else share_out(sizes, wanted, least=np.minimum(most, 1), most=most)
    return groups.mask_rows(_first_of_each(groups.strata, counts))


def share_out(sizes: np.ndarray, total: int, *, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """How many of `total` each class gets: in proportion to `sizes`, by largest remainder, between least and most.

    Example:
        >>> share_out(np.array([70, 20, 1]), 10, least=np.array([1, 1, 1]), most=np.array([70, 20, 1])).tolist()
        [7, 2, 1]
    """
    exact = total * sizes / max(sizes.sum(), 1)
    counts = np.clip(np.floor(exact).astype(np.int64), least, most)
    while counts.sum() < total and (counts < most).any():
        counts[np.argmax(np.where(counts < most, exact - counts, -np.inf))] += 1
    while counts.sum() > total and (counts > least).any():
        counts[np.argmax(np.where(counts > least, counts - exact, -np.inf))] -= 1
    return counts


class _Groups:
    """The images of a task in the order of the draw, one group each or, if `together`, one group per content.

    For single-label tasks `strata` holds the class of every group in canonical numbers, and -1 where identical images
    carry different labels. For multi-label `has` holds whether a group has a positive image of each attribute, and then
    whether it has a negative one.
    """

    def __init__(self, task: Task, purpose: str, *, together: bool):
        self.class_order = canonical_order(task.digests, task.targets)[1]
        targets = renumber(task.targets, self.class_order)
        self.order, is_first = _rank(task.digests, targets, purpose)
        is_new = is_first if together else np.ones(len(task), dtype=bool)
        self.number = np.cumsum(is_new) - 1
        targets, starts = targets[self.order], np.flatnonzero(is_new)
        highest, lowest = np.maximum.reduceat(targets, starts), np.minimum.reduceat(targets, starts)
        if task.is_multilabel:
            self.has = np.hstack([highest == 1, lowest == 0])
        else:
            self.strata = np.where(highest == lowest, highest, -1)
            self.conflicting = np.unique(targets[self.strata[self.number] < 0])

    def __len__(self) -> int:
        return int(self.number[-1]) + 1

    def mask_rows(self, chosen: np.ndarray) -> np.ndarray:
        """A mask of the images of the chosen groups (a mask), in the order of the task."""
        is_chosen = np.zeros(len(self.order), dtype=bool)
        is_chosen[self.order[chosen[self.number]]] = True
        return is_chosen


def _rank(digests: Sequence[str], targets: np.ndarray, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """The images in the order of the draw, identical ones next to each other, and which is the first of its content."""
    hashes = b"".join(hashlib.sha256(f"{purpose} {digest}".encode()).digest()[:16] for digest in digests)
    words = np.frombuffer(hashes, dtype=">u8").reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))
    for group in np.flatnonzero(ends - starts > 1):  # copies may differ in their labels, which then decide
        copies = order[starts[group] : ends[group]]
        copies[:] = sorted(copies.tolist(), key=lambda row: targets[row].tobytes())
    return order, is_first


def _first_of_each(strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A mask of the first `counts[c]` groups of every class c."""
    order = np.argsort(strata, kind="stable")
    order = order[strata[order] >= 0]
    starts = np.searchsorted(strata[order], np.arange(len(counts)))
    place = np.arange(len(order)) - starts[strata[order]]
    chosen = np.zeros(len(strata), dtype=bool)
    chosen[order[place < counts[strata[order]]]] = True
    return chosen


def _cover(has: np.ndarray, wanted: int, *, leave_some: bool) -> np.ndarray:
    """A mask of groups: the first `wanted`, but such that every attribute has positive and negative ones among them.

    If `leave_some`, the groups that are left have both too. The rarest values choose first, which may block the others
    where there are few images; then it is tried again from another group on.
    """
    chosen = np.zeros(len(has), dtype=bool)
    for start in range(min(len(has), _ATTEMPTS)):
        chosen = np.roll(_try_cover(np.roll(has, -start, axis=0), wanted, leave_some), start)
        if has[chosen].any(axis=0).all():
            break
    return chosen


def _try_cover(has: np.ndarray, wanted: int, leave_some: bool) -> np.ndarray:
    """One attempt at `_cover`, which may leave values out."""
    chosen = np.zeros(len(has), dtype=bool)
    inside, outside = np.zeros(has.shape[1], dtype=np.int64), has.sum(axis=0)

    def take(group: int) -> bool:
        if chosen[group] or (leave_some and (outside[has[group]] < 2).any()):
            return False
        chosen[group] = True
        inside[has[group]] += 1
        outside[has[group]] -= 1
        return True

    for value in np.argsort(outside, kind="stable"):
        if inside[value] == 0:
            any(take(group) for group in np.flatnonzero(has[:, value]).tolist())
    count = int(chosen.sum())
    for group in range(len(has)):
        if count >= wanted:
            break
        count += take(group)
    return chosen


def _refuse_rare(task: Task, groups: _Groups) -> None:
    """Raise `DataError` for attributes with a value that only one image has: it cannot be on both sides."""
    fewest = groups.has.sum(axis=0).reshape(2, -1).min(axis=0)
    rare = [task.classes[groups.class_order[column]] for column in np.flatnonzero(fewest < 2)]
    if rare:
        raise DataError(
            f"'{task.name}' cannot be split: {len(rare)} attributes have a single positive or negative image "
            f"({quote(rare)}), so they would be constant on one side. Leave them out with select(classes=...)."
        )


def _make_side(task: Task, mask: np.ndarray, side: str) -> Task:
    """One part of a split, with a warning for every class that it has lost."""
    part = _take(task, np.flatnonzero(mask), f"the {side} part of a split")
    lost = [] if task.is_multilabel else np.setdiff1d(task.targets, task.targets[mask]).tolist()
    warnings = (
        [f"classes without an image in the {side} part: {quote([task.classes[i] for i in lost])}"] if lost else []
    )
    return replace(part, name=f"{task.name} ({side})", warnings=(*warnings, *part.warnings))


def _take(task: Task, rows: np.ndarray, what: str) -> Task:
    """The task of the images at `rows`, named `what` in errors."""
    try:
        part = task.subset(rows)
    except DataError as error:
        raise DataError(f"{what} of '{task.name}' is not a task: {error}") from None
    if task.is_multilabel and len(part.classes) < len(task.classes):
        raise DataError(
            f"{what} of '{task.name}' has no positive image of {len(task.classes) - len(part.classes)} attributes. "
            "Use more images, another seed, or fewer attributes: select(classes=...)."
        )
    return replace(part, warnings=(*inherit_warnings(task), *part.warnings))


# --- batches ---------------------------------------------------------------------------------------------------------


def make_rng(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every seed and purpose, so that no draw depends on the ones before it."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r} (--seed) must be an integer, 0 or more, so that the draw can be repeated.")
    words = np.frombuffer(hashlib.sha256(purpose.encode()).digest(), "<u4")
    return np.random.default_rng([int(seed), *words.tolist()])


def draw_batches(
    task: Task, batches: int | None = None, *, classes: int | None = 5, images: int = 10, seed: int = 0
) -> list[tuple[Task, Task]]:
    """Pairs of tasks: a batch of some classes, drawn at random, and its twin of the same classes and other images.

    No image is in two batches: batches that share images would look alike for that alone. The draw depends on the seed
    and on the content alone, not on the order of the images. Of identical images one counts.

    Args:
        task: The collection, with one label for each image.
        batches: How many; None takes as many as there are images for, 20 at most.
        classes: How many of its classes are in each batch; None takes all.
        images: Of each class in a batch, and as many again in its twin.
        seed: Of the draw.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=100)[0]
        >>> [(batch, twin), *others] = draw_batches(digits, classes=4, images=2)
        >>> batch, twin.classes == batch.classes, len(others)
        (Task(digits batch 1, 8 images, 4 classes), True, 3)
    """
    if task.is_multilabel:
        raise UsageError(
            f"'{task.name}' is multi-label, so it cannot be divided into batches of some classes. Choose one attribute "
            "of it: select(classes=[...]), or one_vs_rest()."
        )
    classes = len(task.classes) if classes is None else classes
    if not 2 <= classes <= len(task.classes):
        raise UsageError(
            f"classes={classes} (--classes) cannot be chosen from the {len(task.classes)} of '{task.name}'. "
            f"Choose 2 to {len(task.classes)}."
        )
    if images < 1 or (batches is not None and batches < 1):
        raise UsageError(
            f"{batches} batches (--batches) of {images} images per class (--shots) cannot be drawn. Leave them "
            "out, or use larger numbers."
        )
    canonical = task.canonical()
    rng = make_rng(seed, f"batches of {classes} classes and {images} images")
    unique = np.unique(np.array(canonical.digests), return_index=True)[1]
    left = [rng.permutation(unique[canonical.targets[unique] == number]) for number in range(len(task.classes))]
    drawn = []
    while len(drawn) < (MAX_BATCHES if batches is None else batches):
        rich = [number for number, rows in enumerate(left) if len(rows) >= 2 * images]
        if len(rich) < classes:
            break
        chosen = rng.choice(rich, classes, replace=False)
        name = f"{task.name} batch {len(drawn) + 1}"
        rows = [np.sort(np.concatenate([left[n][part : 2 * images : 2] for n in chosen])) for part in (0, 1)]
        batch, twin = (canonical.subset(part) for part in rows)
        drawn.append((replace(batch, name=name), replace(twin, name=f"{name}, twin")))
        for number in chosen:
            left[number] = left[number][2 * images :]
    if not drawn or (batches is not None and len(drawn) < batches):
        raise DataError(
            f"'{task.name}' ({len(task)} images of {len(task.classes)} classes) is enough for {len(drawn)} batches: "
            f"each takes {classes} classes with twice {images} images, and no image is in two. Choose fewer batches "
            "(--batches), classes (--classes) or images of a class (--shots)."
        )
    return drawn


# --- unions ----------------------------------------------------------------------------------------------------------


def join_tasks(
    tasks: Sequence[Task],
    *,
    classes: Literal["merge", "apart"] | None = None,
    name: str | None = None,
) -> Task:
    """The union of tasks: all their images, those that several of them share kept once.

    Images are the same if their content is (the bytes of files, the pixels of datasets). Multi-label tasks can be
    joined if they have the same attributes.

    Args:
        tasks: Two tasks or more, all single-label or all multi-label.
        classes: What classes of one name in two tasks are: "merge" for one class, "apart" for two, which are then
            called "task/class", as all classes are. Needed only if there are any.
        name: The name of the union; the names of the tasks joined by " + " if not given.

    Raises:
        DataError: Two tasks label one image differently.
        UsageError: It is unclear whether classes of one name are the same, or the tasks cannot be joined at all.

    Example:
        >>> import task2vec as t2v
        >>> train, test = t2v.sample_tasks(images_per_task=40)[0].split()
        >>> join_tasks([train, test], classes="merge", name="digits")
        Task(digits, 40 images, 10 classes)
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> join_tasks([train, shapes]).name
        'digits (train) + shapes'
    """
    tasks = list(tasks)
    if len(tasks) < 2:
        raise UsageError(f"join_tasks got {len(tasks)} tasks. Pass two or more.")
    if classes not in (None, "merge", "apart"):
        raise UsageError(f"classes={classes!r} is not supported. Pass classes='merge' or 'apart', or leave it out.")
    names, numbered = _number_classes(tasks, classes)
    kept = _keep_once(tasks, names, numbered)
    images = JoinedImages(
        tuple(choose_images(task.images, rows) for task, rows in zip(tasks, kept, strict=True)),
        tuple(task.name for task in tasks),
    )
    targets = np.concatenate([targets[rows] for targets, rows in zip(numbered, kept, strict=True)])
    digests = tuple(task.digests[row] for task, rows in zip(tasks, kept, strict=True) for row in rows)
    shared = sum(map(len, tasks)) - len(digests)
    warnings = list(dict.fromkeys(warning for task in tasks for warning in inherit_warnings(task)))
    if shared:
        warnings.append(f"images that several of the joined tasks share, kept once: {shared}")
    return Task(
        " + ".join(task.name for task in tasks) if name is None else name,
        images,
        targets,
        tuple(names),
        digests,
        bad=tuple(dict.fromkeys(bad for task in tasks for bad in task.bad)),
        warnings=(*warnings, *find_warnings(targets, names, digests, images.name)),
        source=" + ".join(dict.fromkeys(task.source for task in tasks)),
    )


def _number_classes(tasks: list[Task], classes: str | None) -> tuple[list[str], list[np.ndarray]]:
    """The classes of the union, and the targets of every task in their numbers; unclear names are refused."""
    first, names = tasks[0], [task.name for task in tasks]
    every = Counter(kind for task in tasks for kind in task.classes)
    shared = [kind for kind, times in every.items() if times > 1]
    differing = [kind for kind, times in every.items() if times != len(tasks)]
    wrong = ""
    if len({task.is_multilabel for task in tasks}) > 1:
        wrong = "are partly single-label and partly multi-label. Use the one_vs_rest() tasks, or join tasks of one kind"
    elif any(len(set(task.classes)) < len(task.classes) for task in tasks):
        wrong = f"have a task with several classes of one name, among {quote(shared)}. Rename them when you read it"
    elif classes == "apart" and len(set(names)) < len(names):
        wrong = "have equal names, so 'task/class' is ambiguous. Rename one: dataclasses.replace(task, name=...)"
    elif first.is_multilabel and (differing or classes == "apart"):
        what = f"only some have {quote(differing)}" if differing else "classes='apart' makes them all different"
        wrong = (
            f"do not have the same attributes ({what}), so labels would be unknown. Keep common attributes with "
            "select(classes=...), and pass classes='merge'"
        )
    elif classes is None and shared:
        wrong = (
            f"have classes of one name ({quote(shared)}), which may or may not be the same. Pass classes='merge' if "
            "they are, classes='apart' if not"
        )
    if wrong:
        raise UsageError(f"cannot join the tasks {quote(names)}: they {wrong}.")
    if first.is_multilabel:
        orders = [[task.classes.index(kind) for kind in first.classes] for task in tasks]
        return list(first.classes), [task.targets[:, order] for task, order in zip(tasks, orders, strict=True)]
    called = [[f"{task.name}/{kind}" if classes == "apart" else kind for kind in task.classes] for task in tasks]
    number = {kind: index for index, kind in enumerate(dict.fromkeys(kind for kinds in called for kind in kinds))}
    return list(number), [
        np.array([number[kind] for kind in kinds])[task.targets] for task, kinds in zip(tasks, called, strict=True)
    ]


def _keep_once(tasks: list[Task], names: list[str], numbered: list[np.ndarray]) -> list[list[int]]:
    """The rows of every task that no earlier one has; an image that two tasks label differently is refused.

    Copies within a task are kept, whatever their labels.
    """

    def show(part: int, row: int) -> str:
        label = np.atleast_1d(numbered[part][row])
        numbers = np.flatnonzero(label) if tasks[part].is_multilabel else label
        kinds = quote([names[number] for number in numbers]) or "nothing"
        return f"{kinds} in '{tasks[part].name}' ({tasks[part].images.name(row)})"

    known: dict[str, dict[bytes, tuple[int, int]]] = {}
    kept = []
    for part, (task, targets) in enumerate(zip(tasks, numbered, strict=True)):
        mine: dict[str, dict[bytes, tuple[int, int]]] = {}
        rows = []
        for row, digest in enumerate(task.digests):
            label, before = targets[row].tobytes(), known.get(digest, {})
            if before and label not in before:
                raise DataError(
                    f"one image has two labels: {show(*next(iter(before.values())))}, and {show(part, row)}. Correct "
                    "one, or leave the image out with subset(...)."
                )
            if not before:
                rows.append(row)
                mine.setdefault(digest, {}).setdefault(label, (part, row))
        known |= mine
        kept.append(rows)
    return kept
