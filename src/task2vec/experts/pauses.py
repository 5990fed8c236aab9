"""What lies where an expert is to be written: the expert itself, a training in the middle, or something else."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from task2vec.errors import ConflictError, WeightsError, WeightsNotFoundError
from task2vec.experts.files import PAUSED, read_story, read_tensors, write_tensors
from task2vec.experts.learning import Training
from task2vec.experts.loading import TrainedExpert, load_trained
from task2vec.probe.probe import find_head_name

# What is done between two pauses is lost when a training is killed.
PAUSE_SECONDS = 60.0
# Tensors and story of a training in the middle.
Kept = tuple[dict[str, Tensor], dict[str, Any]]


def check_place(path: Path, key: str, replace_other: bool) -> None:
    """Raises `ConflictError` or `WeightsError` if something else lies there; quick, for it reads no weights."""
    for place in () if replace_other else (path, path.with_name(path.name + PAUSED)):
        is_pause = place != path
        try:
            known = read_story(place).get("key") if os.path.lexists(place) else key
        except WeightsError:
            if not is_pause:  # a damaged pause is none
                raise
            continue
        if known != key:
            raise _refuse_pause(place) if is_pause else _refuse_expert(place)


def find_known(path: Path, key: str, replace_other: bool) -> TrainedExpert | None:
    """The expert that lies at `path`, if it is the one that would be trained."""
    if not os.path.lexists(path):
        return None
    try:
        if read_story(path).get("key") == key:
            return load_trained(path)
    except WeightsError:
        if not replace_other:
            raise
    if replace_other:
        return None
    raise _refuse_expert(path)


def _refuse_expert(path: Path) -> ConflictError:
    return ConflictError(
        f"'{path}' is an expert of another task, network, recipe or seed, and would be lost. Give the new one a name "
        "of its own (--name) or another place (--out), or overwrite it: replace_other=True, --force"
    )


def find_pause(path: Path, key: str, replace_other: bool) -> Kept | None:
    """What was kept of the same training when it was interrupted; a damaged file is none."""
    place = path.with_name(path.name + PAUSED)
    try:
        tensors, story = read_tensors(place)
    except (WeightsError, WeightsNotFoundError):
        return None
    if story.get("key") == key:
        return tensors, story
    if replace_other:
        return None
    raise _refuse_pause(place)


def _refuse_pause(place: Path) -> ConflictError:
    return ConflictError(
        f"'{place}' is an unfinished training of another task, network, recipe or seed, and would be lost. Finish that "
        "one, choose another place, or give it up: replace_other=True, --force"
    )


def open_pause(
    path: Path | None, training: Training, story: dict[str, Any], known: Kept | None
) -> Callable[[Training], None]:
    """Goes on from what was kept, if there is something, and gives what keeps the next pauses."""
    if path is None:
        return lambda _: None
    place = path.with_name(path.name + PAUSED)
    if known is not None:
        training.restore(*known)
    last = time.monotonic()

    def pause(training: Training) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE_SECONDS and training.step < training.recipe.steps:
            tensors, progress = training.keep()
            write_tensors(place, tensors, story | progress | {"kind": "pause"})
            last = time.monotonic()

    return pause


def save_expert(expert: TrainedExpert, path: Path) -> TrainedExpert:
    """The expert with a file; what was kept of its training is not needed any more."""
    place = find_head_name(expert.probe.network)
    tensors = dict(expert.probe.network.state_dict()) | {f"{place}.weight": expert.weight, f"{place}.bias": expert.bias}
    write_tensors(path, tensors, expert.story)
    path.with_name(path.name + PAUSED).unlink(missing_ok=True)
    return replace(expert, path=path)
