"""A task and a pretrained network become an expert."""

import copy
import hashlib
import json
import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from task2vec.embedding.batching import Pixels, choose_device, tensor_cores
from task2vec.errors import UsageError
from task2vec.experts.learning import Learner, Lessons, Training, judge
from task2vec.experts.loading import TrainedExpert, name_architecture
from task2vec.experts.pauses import find_known, find_pause, open_pause, save_expert
from task2vec.experts.recipes import Recipe, find_recipe
from task2vec.experts.sampling import crop_centre, draw_epoch
from task2vec.head import fit_head
from task2vec.probe import Probe, load_probe
from task2vec.probe.preprocess import Preprocess
from task2vec.probe.probe import make_probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Task

# A crop is chosen from a square that is larger by this, where the network's own preprocessing leaves no margin.
_MARGIN = 8 / 7
# Raised whenever the same arguments give other weights, so that what older versions trained is not taken for ours.
VERSION = 1


def train_expert(
    task: Task,
    base: Probe | None = None,
    recipe: str | Recipe = "fast",
    *,
    name: str | None = None,
    out: str | Path | None = None,
    replace_other: bool = False,
    validation: Task | None = None,
    seed: int = 0,
    device: str | None = None,
    num_workers: int | None = None,
    progress: bool | Report = False,
) -> TrainedExpert:
    """An expert for `task`: the network of `base`, fine-tuned.

    With `out` it is written there, and a training that was interrupted goes on where it was a minute before; one that
    lies there from the same task, base, recipe and seed is not trained again. Experts are as reproducible as their
    device: on a CPU the same arguments give the same bytes, with or without interruptions.

    Args:
        task: single- or multi-label.
        base: what `load_probe` gives; the default probe if None. It is not changed.
        recipe: "fast", "achille2019", or a `Recipe` of your own.
        name: what to call the expert; the name of the task if None.
        out: file to write, by habit NAME.expert.safetensors.
        replace_other: overwrite what else lies there.
        validation: a task with the same classes whose error is told after every epoch; it changes nothing.
        seed: of draws, crops and mirror images.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        progress: show epochs, steps and the time left on standard error, or what is told of them instead.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=40)[0].select(["0", "1"])
        >>> brief = replace(find_recipe("fast"), epochs=1, draws=16, batch=8)
        >>> expert = train_expert(digits, load_probe(size=32), brief)
        >>> expert.name, len(expert.metrics), tuple(expert.weight.shape)
        ('digits', 1, (2, 1280))
    """
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(
            f"seed={seed!r} (--seed) is no seed: nothing could be drawn by it. Give a whole number from 0."
        )
    base, recipe = base or load_probe(), find_recipe(recipe)
    where = choose_device(device)
    story = describe(task, base, recipe, seed=seed, name=name)
    path = None if out is None else Path(out)
    known = None
    if path is not None:
        if (there := find_known(path, story["key"], replace_other)) is not None:
            return there
        known = find_pause(path, story["key"], replace_other)
    with show_progress(progress) if isinstance(progress, bool) else nullcontext(progress) as report:
        lessons = prepare_lessons(task.canonical(), base, device=where, num_workers=num_workers)
        training = begin(base, lessons, recipe, seed=seed, device=where, classes=len(task.classes), report=report)
        validate = None
        if validation is not None:
            others = prepare_lessons(_match(validation, task), base, device=where, num_workers=num_workers)
            validate = partial(measure_error, training.learner, others)
        with tensor_cores(where):
            training.run(lessons, report, pause=open_pause(path, training, story, known), validate=validate)
    expert = finish(training, base, story)
    return expert if path is None else save_expert(expert, path)


def describe(task: Task, base: Probe, recipe: Recipe, *, seed: int, name: str | None = None) -> dict[str, Any]:
    """What is known of an expert before it is trained; `key` is a hash of all that decides about its weights."""
    deciding = [task.fingerprint, base.fingerprint, recipe.as_dict() | {"name": ""}, seed, VERSION]
    return {
        "kind": "expert",
        "name": name or task.name,
        "key": hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest(),
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        "classes": list(task.canonical().classes),
        "images": len(task),
        "is_multilabel": task.is_multilabel,
        "architecture": name_architecture(base),
        "network": type(base.network).__name__,
        "base_fingerprint": base.fingerprint,
        "size": list(base.size),
        "preprocess": base.preprocess.description,
        "recipe": recipe.as_dict(),
        "seed": seed,
    }


def prepare_lessons(task: Task, base: Probe, *, device: torch.device, num_workers: int | None = None) -> Lessons:
    """The images of a task in its order, as its expert will see them, none of them decoded yet."""
    wide = replace(base, preprocess=widen(base.preprocess)) if isinstance(base.preprocess, Preprocess) else base
    pixels = Pixels(task.images, wide, device=device, num_workers=num_workers or os.cpu_count() or 1)
    return Lessons(pixels, task.targets, base.size, base.preprocess.normalise)


def widen(preprocess: Preprocess) -> Preprocess:
    """The same preprocessing without its last crop, so that there is something to choose crops from."""
    if preprocess.squash is not None:
        sides = zip(preprocess.squash, preprocess.size, strict=True)
        height, width = (max(have, round(_MARGIN * want)) for have, want in sides)
        return replace(preprocess, size=(height, width), squash=(height, width))
    side = max(preprocess.resize, round(_MARGIN * max(preprocess.size)))
    return replace(preprocess, size=(side, side), resize=side)


def begin(
    base: Probe, lessons: Lessons, recipe: Recipe, *, seed: int, device: torch.device, classes: int, report: Report
) -> Training:
    """A training at its first step: a copy of the network, and a head made on its features."""
    network = copy.deepcopy(base.network).to(device)
    with tensor_cores(device):
        features = compute_features(network, lessons, report)
    targets = torch.from_numpy(lessons.targets.astype(np.int64)).to(device)
    if recipe.head == "exact":
        found = fit_head(features, targets, classes=classes)
        weight, bias = found.weight, found.bias
    else:
        weight, bias = _train_head(features, lessons.targets, recipe, seed=seed, classes=classes)
    head = nn.Linear(features.shape[1], classes)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    return Training(Learner(network, head), recipe, device=device, seed=seed)


@torch.no_grad()
def compute_features(network: nn.Module, lessons: Lessons, report: Report, *, batch: int = 128) -> Tensor:
    """(n, d) features of the middles of all images, by the network as it is."""
    network.eval()
    step = report("features", len(lessons.pixels))
    parts = []
    for pixels in lessons.pixels.draws(range(len(lessons.pixels)), batch):
        images = lessons.normalise(crop_centre(pixels, lessons.size), torch.float32)
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        parts.append(network(images))
        step(len(pixels))
    return torch.cat(parts)


def measure_error(learner: Learner, lessons: Lessons) -> float:
    """Share of the images that the learner gets wrong now."""
    features = compute_features(learner.network, lessons, lambda *_: lambda done: None)
    targets = torch.from_numpy(lessons.targets.astype(np.int64)).to(features.device)
    with torch.no_grad():
        _, wrong = judge(learner.head(features), targets)
    learner.train()
    return float(wrong) / len(targets)


def _train_head(
    features: Tensor, targets: np.ndarray, recipe: Recipe, *, seed: int, classes: int
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a head by Adam from zero, on features that stay as they are."""
    head = nn.Linear(features.shape[1], classes, device=features.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.Adam(head.parameters(), lr=recipe.head_rate)
    known = torch.from_numpy(targets.astype(np.int64)).to(features.device)
    for epoch in range(recipe.head_epochs):
        # Epochs of the head have numbers of their own: the network will not see the same draws once more.
        drawn = draw_epoch(targets, draws=recipe.draws, seed=seed, epoch=recipe.epochs + epoch).images
        for own in drawn.to(features.device).split(recipe.batch):
            loss, _ = judge(head(features[own]), known[own])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return head.weight.detach(), head.bias.detach()


def finish(training: Training, base: Probe, story: dict[str, Any]) -> TrainedExpert:
    """The expert that a training came to."""
    learner = training.learner.cpu().to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    source = f"expert ({story['name']})"
    probe = make_probe(base.name, learner.network, (), base.preprocess, source=source)
    told = story | {"metrics": [asdict(one) for one in training.metrics], "fingerprint": probe.fingerprint}
    return TrainedExpert(story["name"], probe, learner.head.weight.detach(), learner.head.bias.detach(), told)


def _match(validation: Task, task: Task) -> Task:
    """The validation task with the classes in the order of the other's."""
    if set(validation.classes) != set(task.classes) or validation.is_multilabel != task.is_multilabel:
        raise UsageError(
            f"'{validation.name}' has other classes than '{task.name}', so no answer to it can be right. Split one "
            "task: train, validation = task.split()"
        )
    wanted = task.canonical().classes
    order = [validation.classes.index(name) for name in wanted]
    targets = validation.targets[:, order] if validation.is_multilabel else np.argsort(order)[validation.targets]
    return replace(validation, targets=targets, classes=wanted)
