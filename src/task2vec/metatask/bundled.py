"""The meta-task that ships with the package: 103 tasks on 7 pretrained networks."""

from functools import cache
from importlib import resources

from task2vec.embedding import Embedding
from task2vec.metatask.metatask import MetaTask, load_metatask
from task2vec.metatask.spaces import is_comparable


@cache
def bundled_metatask() -> MetaTask:
    """The meta-task that ships with the package; docs/results/networks describes how it was measured.

    Example:
        >>> metatask = bundled_metatask()
        >>> len(metatask.tasks), len(metatask.models)
        (103, 7)
    """
    with resources.as_file(resources.files("task2vec.metatask") / "data" / "metatask.safetensors") as path:
        return load_metatask(path)


def list_bundled(like: Embedding) -> list[Embedding]:
    """The bundled tasks in the space of an embedding, made by the same recipe; none if there are none."""
    bundle, recipe = bundled_metatask(), like.provenance.get("recipe")
    for name, example in bundle.spaces.items():
        if is_comparable(example, like) and example.provenance.get("recipe") == recipe:
            return list(bundle.embeddings[name][: len(bundle.tasks)])
    return []
