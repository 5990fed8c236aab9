"""Questions about tasks, answered from one view of what is served; nothing here knows of requests."""

from collections.abc import Sequence

import numpy as np

from task2vec.distance import ALPHA, split_symmetric, symmetric
from task2vec.distance.noise import find_floor, with_error
from task2vec.embedding import Embedding, trivial
from task2vec.experts.protocol import wilson_interval
from task2vec.select.evidence import image_size
from task2vec.web import answers
from task2vec.web.entries import Entry
from task2vec.web.problems import find_none
from task2vec.web.world import Space, View, World

MOST_CLASSES, MOST_FILTERS = 500, 20
_MOST_SPARE = 50


def find_entry(view: View, text: str) -> Entry:
    """The task of an id."""
    if text not in view.entries:
        raise find_none("task", text)
    return view.entries[text]


def find_space(view: View, text: str | None) -> Space:
    """The space of an id; the default one if none is named."""
    if text is None:
        return view.default
    if text not in view.spaces:
        raise find_none("space", text)
    return view.spaces[text]


def list_tasks(view: View, *, words: str, space: str | None, limit: int, offset: int) -> answers.TasksAnswer:
    """A page of the tasks of a space, or of all spaces, whose names, datasets, tags or classes hold all the words."""
    asked = words.casefold().split()
    among = view.entries.values() if space is None else find_space(view, space).entries
    found = [entry for entry in among if entry.matches(asked)]
    page = [
        answers.TaskLine(
            id=one.id,
            name=one.name,
            dataset=one.dataset,
            origin=one.origin,
            space=one.space,
            images=one.images,
            classes=len(one.counts),
            norm=one.norm,
            head_error=one.head_error,
        )
        for one in found[offset : offset + limit]
    ]
    return answers.TasksAnswer(total=len(found), tasks=page)


def describe_task(world: World, view: View, text: str) -> answers.TaskAnswer:
    """All that is known of a task."""
    entry = find_entry(view, text)
    embedding = world.embedding(entry)
    names = entry.classes or [f"class {number + 1}" for number in range(len(entry.counts))]
    classes = [answers.ClassAnswer(name=name, count=count) for name, count in zip(names, entry.counts, strict=False)]
    interval = None
    if entry.head_error is not None and entry.images > 0:
        score = wilson_interval(entry.head_error * entry.images, entry.images)
        interval = [score.low, score.high]
    side = image_size(embedding)
    settings = {"probe": embedding.probe, "probe_fingerprint": embedding.probe_fingerprint[:8], "image_size": side}
    return answers.TaskAnswer(
        id=entry.id,
        name=entry.name,
        origin=entry.origin,
        dataset=entry.dataset,
        taxon=entry.taxon,
        space=entry.space,
        images=entry.images,
        classes=classes[:MOST_CLASSES],
        class_total=len(classes),
        is_multilabel=entry.is_multilabel,
        tags=list(entry.tags),
        norm=entry.norm,
        head_error=entry.head_error,
        head_error_interval=interval,
        noise=find_noise(embedding),
        best_error=entry.best_error,
        made=entry.made,
        settings=settings | dict(embedding.provenance.get("settings") or {}),
    )


def find_noise(embedding: Embedding) -> float | None:
    """The noise floor of a task; None where the embedding does not know its errors, as those that ship do not."""
    return find_floor(embedding) if embedding.stderr.any() or embedding.halves is not None else None


def find_nearest(world: World, view: View, text: str, *, limit: int) -> answers.NearestAnswer:
    """The nearest tasks of the library and of the meta-task together."""
    entry = find_entry(view, text)
    embedding = world.embedding(entry)
    noise = find_noise(embedding)
    near = sorted(measure_near(world, view, entry, embedding, limit), key=lambda pair: (pair[1], pair[0].id))[:limit]
    told = [
        answers.NeighbourAnswer(
            id=one.id,
            name=one.name,
            dataset=one.dataset,
            origin=one.origin,
            distance=distance,
            is_within_noise=noise is not None and distance <= noise,
        )
        for one, distance in near
    ]
    return answers.NearestAnswer(task=entry.id, noise=noise, neighbours=told)


def measure_near(world: World, view: View, entry: Entry, embedding: Embedding, limit: int) -> list[tuple[Entry, float]]:
    """The nearest of the library and all of the meta-task with their distances, without the task itself."""
    space = view.spaces[entry.space]
    shipped = [one for one in space.shipped if one.fingerprint != entry.fingerprint]
    near = list(zip(shipped, world.measure(embedding, shipped).tolist(), strict=True))
    library = world.open()
    if library is not None and space.has_own:
        # Older embeddings of the same task and space stand behind the newest, which alone has an id.
        for found in library.nearest(embedding, limit + min(space.spare, _MOST_SPARE)):
            if (one := view.by_key.get(found.embedding.key)) is not None:
                near.append((one, found.distance))
    return near


def compare_tasks(world: World, view: View, first: str, second: str) -> answers.CompareAnswer:
    """How far two tasks are apart, and which layers and filters make it so."""
    entries = [find_entry(view, text) for text in (first, second)]
    a, b = (world.embedding(entry) for entry in entries)
    parts = split_symmetric(a, b)
    distance = symmetric(a, b)
    shares = parts / (parts.sum() or 1.0)
    slices = a.layer_slices()
    layers = [
        answers.LayerAnswer(name=name, share=float(shares[own].sum()), filters=own.stop - own.start)
        for name, own in slices.items()
    ]
    noise = with_error(a, b).floor if all(find_noise(one) is not None for one in (a, b)) else None
    there, back = (distance - ALPHA * symmetric(one, trivial(one)) for one in (a, b))
    return answers.CompareAnswer(
        first=entries[0].id,
        second=entries[1].id,
        distance=distance,
        noise=noise,
        asymmetric=answers.AsymmetricAnswer(there=there, back=back),
        layers=sorted(layers, key=lambda layer: -layer.share),
        filters=_list_filters(a, b, shares),
    )


def _list_filters(a: Embedding, b: Embedding, shares: np.ndarray) -> list[answers.FilterAnswer]:
    """The filters with the largest shares."""
    slices = a.layer_slices()
    starts = np.array([own.start for own in slices.values()])
    names: Sequence[str] = list(slices)
    found = []
    for place in np.argsort(-shares, kind="stable")[:MOST_FILTERS].tolist():
        layer = int(np.searchsorted(starts, place, side="right")) - 1
        found.append(
            answers.FilterAnswer(
                layer=names[layer],
                number=place - int(starts[layer]),
                first=float(a.fisher[place]),
                second=float(b.fisher[place]),
                share=float(shares[place]),
            )
        )
    return found
