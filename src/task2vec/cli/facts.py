"""What the command line tells about an embedding: plain facts for JSON, and their words."""

from typing import TYPE_CHECKING, Any

from task2vec.errors import EmbeddingFileError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding


def describe(embedding: "Embedding", *, has_noise: bool = True) -> dict[str, Any]:
    """The facts of an embedding as plain values, each of the type it should have: files come from strangers.

    The noise takes longer to find than all else, and may be left out.
    """
    story = embedding.provenance
    try:
        return {
            "task": str(embedding.task),
            "probe": str(embedding.probe),
            "image_size": [int(side) for side in story["image_size"]],
            "filters": len(embedding.fisher),
            "norm": float(embedding.norm()),
            "is_multilabel": bool(story["is_multilabel"]),
            "counts": {key: _count(value) for key, value in story["counts"].items()},
            "head": {key: _number(value) for key, value in story["head"].items()},
            "effective_images": _number(story["effective_images"]),
            "relative_error": _number(story["relative_error"]),
            "noise": _find_noise(embedding) if has_noise else {},
            "variational": {key: _number(value) for key, value in story.get("variational", {}).items()},
            "warnings": [str(warning) for warning in _listed(story.get("warnings", []))],
            "settings": dict(story["settings"]),
            "fingerprints": {"task": str(story["task_fingerprint"]), "probe": str(story["probe_fingerprint"])},
            "versions": dict(story["versions"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EmbeddingFileError(
            f"the embedding of '{embedding.task}' does not say how it was made ({type(error).__name__}: {error}), so "
            f"its numbers cannot be judged. Embed the task again: task2vec embed FOLDER"
        ) from error


def word_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts that matter first, as rows of name and sentence."""
    counts, head = facts["counts"], facts["head"]
    height, width = facts["image_size"]
    rows = [
        (
            "task",
            f"{printable(facts['task'])}: {pluralize(counts['images'], 'image')}, {pluralize(counts['classes'], 'class')}"
            f"{_word_classes(facts)}",
        ),
        ("probe", f"{printable(facts['probe'])} at {height} x {width} pixels, {facts['filters']} filters"),
        ("head", f"{format_percent(head['cv_error'])} cross-validated error, L2 penalty {head['l2']:.3g}"),
        ("norm", f"{facts['norm']:.4g}"),
        (
            "precision",
            f"{format_percent(facts['relative_error'])} relative error of a filter (median), {_word_effort(facts)}",
        ),
        ("noise floor", _word_noise(facts)),
    ]
    if facts["variational"]:
        trained = facts["variational"]
        words = (
            f"loss {trained['loss']:.3g}, KL {trained['kl']:.3g} nats, drift {trained['drift']:.2g} in the last epoch"
        )
        rows.append(("training", words))
    if counts["bad"]:
        rows.insert(1, ("left out", pluralize(counts["bad"], "unreadable image")))
    return rows


def _word_classes(facts: dict[str, Any]) -> str:
    fewest, most = min(facts["counts"]["per_class"]), max(facts["counts"]["per_class"])
    kind = ", multi-label" if facts["is_multilabel"] else ""
    return f" ({pluralize(most, 'image') if fewest == most else f'{fewest} to {most} images'} each{kind})"


def _word_effort(facts: dict[str, Any]) -> str:
    counts = facts["counts"]
    return f"{pluralize(counts['backpropagated'], 'gradient')} of {pluralize(counts['images_used'], 'image')}"


def _word_noise(facts: dict[str, Any]) -> str:
    floor, is_part = facts["noise"]["floor"], facts["noise"]["basis"] == "stderr"
    more, mend = (" or more", "; --split-half measures all of it") if is_part else ("", "")
    return f"{floor:.3f}{more}, the distance of two such embeddings of this task{mend}"


def _find_noise(embedding: "Embedding") -> dict[str, Any]:
    from task2vec.distance.noise import find_basis, find_floor

    return {"floor": find_floor(embedding), "basis": find_basis(embedding)}


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list is expected")
    return value


def _count(value: Any) -> Any:
    return [int(part) for part in value] if isinstance(value, list) else int(value)


def _number(value: Any) -> float | bool | None:
    return value if value is None or isinstance(value, bool) else float(value)
