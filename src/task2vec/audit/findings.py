"""What the features of a task say about its images: suspects, copies, classes, confusions and outliers, as values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.audit.analysis import COPY, EXACT, ClassFacts, Confusion, CopyGroup, LabelIssue
from task2vec.audit.labels import LabelJudgement, find_outliers
from task2vec.tasks import Images, Task
from task2vec.tasks.copies import KINDS, Copies

if TYPE_CHECKING:
    from task2vec.select.measure import Measurements

# Examples of a class, and outliers that are listed.
MAX_EXAMPLES, MAX_OUTLIERS = 3, 24


@dataclass(frozen=True, eq=False)
class Predictions:
    """What heads predict of images that they were not fitted on.

    Attributes:
        probabilities: (n, c) of classes or attributes.
        votes: (n, c) shares of the repetitions that predict each.
        losses: (n,) what each image contributes to the error; NaN if it cannot be judged.
        weights: (n, c) what a wrong answer on an attribute contributes; None for classes.
    """

    probabilities: np.ndarray
    votes: np.ndarray
    losses: np.ndarray
    weights: np.ndarray | None

    @property
    def is_judged(self) -> np.ndarray:
        """(n,) which images count."""
        return np.isfinite(self.losses)


def predict(task: Task, measured: "Measurements", known: "Measurements", model: str) -> Predictions:
    """What the heads of a model predict that was measured now; its losses are the known ones, if any is judged."""
    from task2vec.select.measure import Folds

    if not measured.models:
        empty = np.zeros((len(task), len(task.classes)))
        return Predictions(empty, empty, np.full(len(task), np.nan), empty if task.is_multilabel else None)
    folds = Folds(task.targets.copy(), measured.groups, classes=len(task.classes), name=task.name)
    probabilities, votes, _ = folds.predict(measured.features[0])
    return Predictions(probabilities, votes, known.losses[:, known.models.index(model)], folds.weights)


def name_labels(task: Task) -> list[str]:
    """The label of every image as text; of attributes, the names of those that it has."""
    if not task.is_multilabel:
        return [task.classes[target] for target in task.targets]
    return [", ".join(name for name, has in zip(task.classes, row, strict=True) if has) for row in task.targets]


def list_issues(task: Task, judgement: LabelJudgement) -> Iterator[LabelIssue]:
    """The suspected images, the worst label first."""
    for number in judgement.suspects:
        suggested = int(judgement.suggested[number])
        if task.is_multilabel:
            has = bool(task.targets[number, suggested])
            label, prediction = (f"{task.classes[suggested]}: {'yes' if value else 'no'}" for value in (has, not has))
        else:
            label, prediction = task.classes[task.targets[number]], task.classes[suggested]
        about = float(judgement.score[number]), bool(judgement.is_lookalike[number])
        yield LabelIssue(task.images.name(number), label, prediction, *about, number)


def list_copies(splits: Mapping[str, Task], images: Images, copies: Copies) -> tuple[CopyGroup, ...]:
    """The groups of images that show the same: leaks and different labels first, then by kind."""
    labels = [label for task in splits.values() for label in name_labels(task)]
    split_of = [name for name, task in splits.items() for _ in range(len(task))]
    groups = []
    for match in copies.groups:
        wider = [group for group in copies.groups if group.kind == COPY and set(match.numbers) < set(group.numbers)]
        if match.kind == EXACT and wider:  # the advice is the same
            continue
        columns = ((images.name(n), labels[n], split_of[n]) for n in match.numbers)
        names, given, origins = zip(*columns, strict=True)
        groups.append(CopyGroup(match.kind, names, given, origins, match.numbers))
    groups.sort(key=lambda group: (not group.is_leak, not group.has_conflict, KINDS.index(group.kind), group.images))
    return tuple(groups)


def list_confused(task: Task, predictions: Predictions) -> tuple[Confusion, ...]:
    """Which classes are taken for which, the most images first; attributes are not confused with each other."""
    if task.is_multilabel:
        return ()
    rows = predictions.is_judged
    counts = np.zeros((len(task.classes), len(task.classes)))
    np.add.at(counts, task.targets[rows], predictions.votes[rows])
    sizes = counts.sum(1)
    np.fill_diagonal(counts, 0)
    first, second = np.nonzero(counts > 1e-6)
    images, shares = counts[first, second], counts[first, second] / sizes[first]
    order = np.lexsort((second, first, -shares, -images.round(6))).tolist()
    names = task.classes
    return tuple(
        Confusion(names[first[row]], names[second[row]], float(images[row]), float(shares[row])) for row in order
    )


def list_classes(
    task: Task, predictions: Predictions, features: np.ndarray, is_suspected: np.ndarray
) -> tuple[ClassFacts, ...]:
    """All classes, the hardest first; of attributes, their images are those that have them."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    losses, is_judged = predictions.losses, predictions.is_judged
    is_known, shares = np.ones(len(task.classes), dtype=bool), losses[:, None]
    if predictions.weights is not None:  # the error is the mean over the attributes that can be judged
        is_known = np.asarray(predictions.weights.any(0))
        shares = predictions.weights * np.abs(predictions.votes - task.targets) * is_known.sum()
    classes = []
    for number, name in enumerate(task.classes):
        is_member = task.targets[:, number] > 0 if task.is_multilabel else task.targets == number
        rows = np.flatnonzero(is_member)
        if predictions.weights is None:
            judged = losses[is_member & is_judged]
        else:
            judged = shares[is_judged, number] if is_known[number] else np.empty(0)
        error = float(judged.mean()) if len(judged) else None
        likeness = unit[rows] @ unit[rows].mean(0) - 2 * is_suspected[rows]  # a suspect is no example of its class
        typical = rows[np.argsort(-likeness, kind="stable")][:MAX_EXAMPLES]
        candidates = rows[is_judged[rows] & ~is_suspected[rows] & ~np.isin(rows, typical)]
        hardest = candidates[np.argsort(predictions.probabilities[candidates, number], kind="stable")][:MAX_EXAMPLES]
        classes.append(ClassFacts(name, len(rows), error, tuple(typical.tolist()), tuple(hardest.tolist())))
    return tuple(sorted(classes, key=lambda facts: (-(facts.error or 0.0), facts.images, facts.name)))


def list_outliers(isolation: np.ndarray) -> tuple[int, ...]:
    """The images that are unlike all others, the most unusual first."""
    numbers = np.flatnonzero(find_outliers(isolation))
    return tuple(numbers[np.argsort(-isolation[numbers], kind="stable")][:MAX_OUTLIERS].tolist())


def list_rows(
    task: Task,
    images: Images,
    digests: Sequence[str],
    predictions: Predictions,
    judgement: LabelJudgement,
    copies: Sequence[CopyGroup],
) -> Iterator[dict[str, Any]]:
    """One row for every image, the most doubtful labels first, then for images of other splits that are in a group.

    What is not judged has no loss, doubt and prediction.
    """
    labels, count = name_labels(task), len(task)
    order = np.argsort(np.where(np.isnan(judgement.score), 2, -judgement.score), kind="stable").tolist()
    for number in order:
        loss, doubt, predicted = None, None, None
        if predictions.is_judged[number]:
            loss, p = float(predictions.losses[number]), predictions.probabilities[number]
            chosen = np.flatnonzero(p > 0.5) if task.is_multilabel else [p.argmax()]
            predicted = ", ".join(task.classes[index] for index in chosen)
            doubt = None if np.isnan(judgement.score[number]) else round(float(judgement.score[number]), 4)
        row = {"image": images.name(number), "label": labels[number], "predicted": predicted, "doubt": doubt}
        yield row | {"loss": loss, "digest": digests[number]}
    members = {number: label for group in copies for number, label in zip(group.numbers, group.labels, strict=True)}
    for number in sorted(number for number in members if number >= count):
        row = {"image": images.name(number), "label": members[number], "predicted": None, "doubt": None}
        yield row | {"loss": None, "digest": digests[number]}
