"""Candidates for a recommendation: models found by name or file, their size and their speed on this machine."""

import difflib
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.errors import UsageError
from task2vec.experts.metatask import ModelInfo, find_free_name
from task2vec.library import Expert, Library
from task2vec.progress import Report, silent
from task2vec.select.zoo import find_in_zoo, load_zoo, name_network

if TYPE_CHECKING:
    from torch import nn

# Images of a pass, and passes after a first one that only warms up: the median counts.
BATCH, PASSES = 8, 3


def find_model(name: str, known: Sequence[ModelInfo]) -> ModelInfo:
    """The model that is meant: one that is known by that name, a file of an expert, or one of timm or torchvision.

    A network that is known by that name with weights that no library has is not meant: a name stands for what it loads.

    Raises:
        UsageError: It is none of these.
    """
    same = [model for model in known if name == model.name or model.location in (name, f"timm:{name}")]
    lost = [model for model in same if model.weights_origin and model.source_task is None]
    same = [model for model in same if model not in lost]
    if (in_zoo := find_in_zoo(load_zoo(), name)) is not None:  # it may have another name for the weights of a known one
        same += [model for model in known if find_in_zoo(load_zoo(), model.location or "") is in_zoo]
    if same:
        return same[0]
    if name.endswith(".expert.safetensors") or Path(name).is_file():
        from task2vec.experts.checkpoint import SUFFIX, read_metadata

        metadata = read_metadata(Path(name))
        size = metadata["size"][0] if isinstance(metadata.get("size"), list) else None
        own = str(metadata.get("name") or Path(name).name.removesuffix(SUFFIX))
        source = (metadata.get("task"), metadata.get("task_fingerprint"))
        return ModelInfo(own, "expert", metadata.get("architecture"), *source, location=name, size=size)
    from task2vec.probe.load import is_timm_model, is_torchvision_model

    library, _, model = name.rpartition(":")
    for home, is_known in (("timm", is_timm_model), ("torchvision", is_torchvision_model)):
        if library in ("", home) and is_known(model):
            return ModelInfo(f"{home}:{model}" if lost else name, network=model, location=f"{home}:{model}")
    if lost:
        return lost[0]
    names = list(dict.fromkeys(one.name for one in known if one.location is not None))
    near = difflib.get_close_matches(name, [*names, *load_zoo().numbers], n=3, cutoff=0.5)
    mean = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(
        f"'{name}' is not a model with known errors, a file of an expert, or a model of timm or torchvision, so it "
        f"cannot be a candidate.{mean} Known and loadable: {', '.join(names) or 'none'}; all: task2vec models"
    )


def read_count(text: str | float) -> float:
    """A number of parameters: 10M, 2.5e6, 800k.

    Example:
        >>> read_count("10M"), read_count("800k"), read_count(2.5e6)
        (10000000.0, 800000.0, 2500000.0)
    """
    refusal = f"'{text}' is not a number of parameters (--max-params). Write it like 10M, 800k or 2500000."
    return read_amount(text, {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}, refusal)


def read_amount(text: str | float, units: Mapping[str, float], refusal: str) -> float:
    """A number above 0 with one of the units; a UsageError for what is none."""
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([a-z]?)\s*", str(text).lower())
    value = float(found[1]) * units.get(found[2], 0) if found else 0.0
    if not 0 < value < math.inf:
        raise UsageError(refusal)
    return value


def make_entry(model: ModelInfo, library: Library | None) -> Expert:
    """The model as a library keeps it: the entry it has of that network at that size, or one under a free name."""
    if model.entry is not None:
        return model.entry
    assert model.location is not None
    known = {} if library is None else {expert.name: expert for expert in library.experts()}
    if not model.is_named:
        from task2vec.experts.checkpoint import load_trained

        entry = load_trained(model.location).entry()
        return next((one for one in known.values() if one.sha256 == entry.sha256), replace(entry, name=model.name))
    for expert in known.values():
        if (expert.source, expert.location, expert.input_size) == ("hub", model.location, model.size):
            return expert
    name = find_free_name(model.name, known, size=model.size)
    return Expert(name, "hub", model.location, parameters=model.params, input_size=model.size, cost=model.gmacs)


def time_models(
    models: Sequence[ModelInfo], *, device: str | None = None, passes: int = PASSES, report: Report = silent
) -> dict[str, float | None]:
    """The seconds that each model takes for 1,000 images of its size on this machine, by its name.

    Only the architecture and the size of the images count, so networks are built without their weights and see noise,
    and models of one architecture and size are timed once. None where the network cannot be built.
    """
    wanted = {model.name: (name_network(model), model.size) for model in models}
    found: dict[tuple[str | None, int | None], float] = {}
    step = report("timing", len(wanted))
    for name, size in wanted.values():
        if name is not None and (name, size) not in found:
            found[name, size] = time_network(*_build(name, size), device=device, passes=passes)
        step(1)
    return {name: found.get(key) for name, key in wanted.items()}


def time_network(network: "nn.Module", size: int, *, device: str | None = None, passes: int = PASSES) -> float:
    """Seconds for 1,000 images of `size` pixels: the median of some passes over eight."""
    import torch

    from task2vec.embedding.batching import choose_device

    where = choose_device(device)
    network = network.to(where).eval()
    pixels = torch.rand(BATCH, 3, size, size, device=where)
    spent = []
    with torch.inference_mode():
        for _ in range(passes + 1):
            begin = time.perf_counter()
            network(pixels).sum().item()  # waits for a GPU
            spent.append(time.perf_counter() - begin)
    return 1000 / BATCH * statistics.median(spent[1:])


def _build(name: str, size: int | None) -> "tuple[nn.Module, int]":
    """A network with random weights, and the size of its input images."""
    library, _, model = name.partition(":")
    if library == "torchvision":
        import torchvision

        from task2vec.probe.load import find_torchvision_enum

        own = find_torchvision_enum(model).transforms().crop_size[0]
        return torchvision.models.get_model(model.partition(".")[0], weights=None), size or own
    import timm

    network = timm.create_model(model, pretrained=False)
    return network, size or int(network.pretrained_cfg["input_size"][-1])  # type: ignore[index]
