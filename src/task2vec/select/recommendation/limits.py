"""Who is too large or too slow to be recommended."""

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from task2vec.errors import UsageError
from task2vec.progress import Report, silent
from task2vec.select.knowledge.offers import NETWORKS, Offer

if TYPE_CHECKING:
    from torch import nn

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
# Images of a pass, and passes after a first one that only warms up: the middle one counts.
_BATCH, _PASSES = 8, 3


def read_count(text: str | float) -> float:
    """A number of weights: 10M, 2.5e6, 800k.

    Example:
        >>> read_count("10M"), read_count("800k"), read_count(2.5e6)
        (10000000.0, 800000.0, 2500000.0)
    """
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgb]?)\s*", str(text), re.IGNORECASE)
    try:
        count = float(found[1]) * _UNITS[found[2].upper()] if found else math.nan
    except ValueError:
        count = math.nan
    if not count > 0 or math.isinf(count):
        raise UsageError(
            f"'{text}' is no number of weights (--max-params), so nobody can be measured by it. Write it like 10M, "
            "800k or 2500000."
        )
    return count


def within_params(offers: Sequence[Offer], most: float) -> list[bool]:
    """Whether each expert has at most so many weights; where that is not known, it is not said to have."""
    return [offer.parameters is not None and offer.parameters <= most for offer in offers]


def count_offer(offer: Offer) -> Offer:
    """The offer with the number of its weights, which a network that has a name tells when it is built."""
    from task2vec.experts.cost import count_multiplications, count_parameters

    name = _name_network(offer)
    if offer.parameters is not None or name is None:
        return offer
    network, size = _build(name, offer.size)
    return replace(offer, parameters=count_parameters(network), cost=count_multiplications(network, (size, size)))


def time_offers(offers: Sequence[Offer], *, device: str | None = None, report: Report = silent) -> list[float | None]:
    """The seconds that each expert takes for 1,000 images on this machine; None where its network cannot be built.

    Only the architecture and the size of the images count, so networks are built without their weights and see noise,
    and experts of one architecture are timed once. Reading and decoding images is not in it.
    """
    found: dict[tuple[str, int | None], float | None] = {}
    wanted = [(name, offer.size) if (name := _name_network(offer)) is not None else None for offer in offers]
    keys = list(dict.fromkeys(key for key in wanted if key is not None))
    step = report("timing candidates", len(keys))
    for name, size in keys:
        found[name, size] = time_network(*_build(name, size), device=device)
        step(1)
    return [None if key is None else found[key] for key in wanted]


def word_timing(count: int) -> str:
    """What to say of candidates that were timed."""
    networks = "1 network was" if count == 1 else f"{count} networks were"
    return (
        f"{networks} timed on this machine for --max-time: the middle of {_PASSES} passes over {_BATCH} images of "
        "noise, reading images apart."
    )


def time_network(
    network: "nn.Module", size: int, *, device: str | None = None, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds for 1,000 images of `size` pixels: the median of three passes over eight."""
    import torch

    from task2vec.embedding.batching import choose_device

    where = choose_device(device)
    network = network.to(where).eval()
    pixels = torch.rand(_BATCH, 3, size, size, device=where)
    spent = []
    with torch.inference_mode():
        for _ in range(_PASSES + 1):
            begin = clock()
            network(pixels).sum().item()  # waits for a GPU
            spent.append(clock() - begin)
    return 1000 / _BATCH * statistics.median(spent[1:])


def _name_network(offer: Offer) -> str | None:
    """What the architecture of an expert is called where it can be built."""
    if offer.is_named:
        return offer.location
    name = offer.network or ""
    return name if name.startswith(("timm:", "torchvision:")) else NETWORKS.get(name)


def _build(name: str, size: int | None) -> "tuple[nn.Module, int]":
    """A network with random weights, and the size of the images that it sees."""
    library, _, model = name.partition(":")
    if library == "torchvision":
        import torchvision

        own = torchvision.models.get_model_weights(model).DEFAULT.transforms().crop_size[0]  # type: ignore[attr-defined]
        return torchvision.models.get_model(model, weights=None), size or own
    import timm

    network = timm.create_model(model, pretrained=False)
    return network, size or int(network.pretrained_cfg["input_size"][-1])  # type: ignore[index]
