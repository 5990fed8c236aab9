"""A probe by the name of a model of timm or torchvision, or from a module of your own."""

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from task2vec.errors import ProbeError, WeightsError
from task2vec.probe import weights as sources
from task2vec.probe.probe import INTERPOLATIONS, CustomPreprocess, Preprocess, Probe, check_transform, make_probe
from task2vec.progress import Report

DEFAULT_PROBE = "tf_efficientnet_lite0"
# What torchvision changes about a network that is built with its trained weights.
_AS_TRAINED: dict[str, dict[str, Any]] = {
    "googlenet": {"transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
}
# In torchvision's files of DenseNets, which are older than its rule that no module has a dot in its name.
_OLD_NAMES = re.compile(r"(\.denselayer\d+\.(?:norm|conv))\.(?=[12]\.)")
_Weights = tuple[dict[str, Tensor], str]
_Loaded = tuple[nn.Module, tuple[str, ...], Preprocess | CustomPreprocess, str]


def load_probe(
    name_or_module: str | nn.Module = DEFAULT_PROBE,
    *,
    weights: str | Path | None = None,
    head: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    size: int | None = None,
    download: bool = False,
    progress: bool | Report = False,
) -> Probe:
    """A frozen probe, with the preprocessing its weights were trained with.

    A name is looked up in timm, then in torchvision; `timm:NAME` and `torchvision:NAME` select one. Their weights may
    differ: the paper's probe is `torchvision:resnet34`, while `resnet34` is timm's of 2021. A tag behind a dot selects
    one of several weights (`torchvision:resnet50.IMAGENET1K_V1`); without it they are the library's default, and the
    probe's `source` names them. Weights come from `weights` (a safetensors or `weights_only` torch file), otherwise
    from the local caches or the offline package, and are downloaded only if `download` is set.

    Args:
        name_or_module: the name of a model, or a module. A copy of it is put into eval mode; the probe's `source` says
            so if it was in train mode.
        weights: a local weights file, with or without the head.
        head: name of the final classifier layer; known for named models and for modules of timm and torchvision.
        transform: deterministic, from a PIL image to the network's input tensor; known for the same models, except
            networks of torchvision that were trained in several ways.
        size: side of the square images, if not the model's own (smaller is faster).
        download: allow downloading weights that are not on this machine.
        progress: show the megabytes of a download on standard error, or report them to a function.

    Example:
        >>> probe = load_probe(size=64)
        >>> probe.n_filters, probe.feature_dim
        (21008, 1280)
    """
    if size is not None and size < 1:
        raise ProbeError(f"size={size} is not an image size. Give it in pixels, such as 128, or leave it out.")
    if isinstance(name_or_module, nn.Module):
        module = name_or_module
        name = type(module).__name__
        heads, preprocess = ((), None) if head and transform else _describe_module(module, size)
        heads = (head,) if head else heads
        preprocess = check_transform(transform) if transform else preprocess
        if not heads or preprocess is None or (transform and size) or weights is not None:
            raise ProbeError(
                f"a module of your own ({name}) needs head= (the name of its last linear layer) and transform= (from a "
                "PIL image to its input tensor; it decides the size, so size= is left out), which are not guessed. "
                "Modules of timm provide both, as do those of torchvision unless they may have been trained in "
                "several ways: pass transform=WEIGHTS.transforms(). weights= is not accepted: load them first."
            )
        source = "module in train mode, put into eval mode" if any(m.training for m in module.modules()) else "module"
        return make_probe(name, module, heads, preprocess, source=source)
    library, _, name = name_or_module.rpartition(":")
    if library not in ("", "timm", "torchvision"):
        raise ProbeError(f"unknown source '{library}' in '{name_or_module}'. Write timm:{name} or torchvision:{name}.")
    if library != "torchvision" and is_timm_model(name):
        load = _from_timm
    elif library != "timm" and is_torchvision_model(name):
        load = _from_torchvision
    else:
        raise _unknown_model(library, name)
    given = (sources.read_weights(weights), f"file {Path(weights).name}") if weights else None
    module, heads, preprocess, source = load(name, given, size, {"download": download, "progress": progress})
    heads = (head,) if head else heads
    return make_probe(name, module, heads, check_transform(transform) if transform else preprocess, source=source)


def _describe_module(
    module: nn.Module, size: int | None
) -> tuple[tuple[str, ...], Preprocess | CustomPreprocess | None]:
    """The head and the preprocessing of a module of timm or torchvision; none, or None, where they are not known."""
    if isinstance(getattr(module, "pretrained_cfg", None), dict):
        from timm.data.config import resolve_model_data_config

        return _find_timm_heads(module), _timm_preprocess(resolve_model_data_config(module), size)
    linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not type(module).__module__.startswith("torchvision.models.") or not linear:
        return (), None
    head, layer = linear[-1]
    # With as many parameters as trained weights of the same family, but for the number of classes, it is that network.
    params = sum(p.numel() for p in module.parameters()) + (layer.in_features + 1) * (1000 - layer.out_features)
    family = [
        n
        for n in models.list_models(module=models)
        if models.get_model_builder(n).__module__ == type(module).__module__
    ]
    known = [weights for name in family for weights in models.get_model_weights(name)]
    fitting = [weights for weights in known if weights.meta["num_params"] == params]
    recipes = {_torchvision_preprocess(weights.transforms(), size) for weights in fitting}
    return (head,), recipes.pop() if len(recipes) == 1 else None


def list_probes() -> list[dict[str, Any]]:
    """The probes with a known local source, as rows of name, source and whether the weights are on this machine.

    Example:
        >>> [row["name"] for row in list_probes() if row["source"].startswith("offline")][0]
        'tf_efficientnet_lite0'
    """
    import timm
    from huggingface_hub.constants import HF_HUB_CACHE

    probes = [
        {"name": name, "source": f"offline package {package}", "is_local": sources.is_offline_package_installed(name)}
        for name, (package, *_) in sources.OFFLINE_PACKAGES.items()
    ]
    folders = {folder.name for folder in Path(HF_HUB_CACHE).glob("models--*")}
    for name in timm.list_pretrained() if folders else ():
        config = timm.models.get_pretrained_cfg(name)
        repo = config.hf_hub_id if config else None
        if repo and "models--" + repo.replace("/", "--") in folders and sources.find_in_hub_cache(repo):
            probes.append({"name": name, "source": f"hub cache {repo}", "is_local": True})
    files = {file.name for file in (Path(torch.hub.get_dir()) / "checkpoints").glob("*")}
    for name in models.list_models(module=models) if files else ():
        for weights in models.get_model_weights(name):
            if Path(weights.url).name in files:
                tag = "" if weights == models.get_model_weights(name).DEFAULT else f".{weights.name}"  # type: ignore[attr-defined]
                probes.append({"name": f"torchvision:{name}{tag}", "source": "torch cache", "is_local": True})
    return probes


def is_timm_model(name: str) -> bool:
    """Whether timm has a network of that name, and weights for it."""
    import timm

    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError:  # the network is known, the tag of its weights (behind the dot) is not
        return False
    return timm.is_model(name)


def is_torchvision_model(name: str) -> bool:
    """Whether torchvision has a classifier of that name, and the weights of the tag behind the dot, if there is one."""
    network, _, tag = name.partition(".")
    if network not in models.list_models(module=models):
        return False
    return not tag or tag in models.get_model_weights(network).__members__


def _unknown_model(library: str, name: str) -> ProbeError:
    import timm

    known = timm.list_models() + models.list_models(module=models)
    if "." in name:
        known += timm.list_pretrained()
        network = name.partition(".")[0]
        tags = models.get_model_weights(network) if is_torchvision_model(network) else ()
        known += [f"{network}.{weights.name}" for weights in tags]
    close = difflib.get_close_matches(name, sorted(set(known)), n=3)
    if library and name in known:  # it is there, but in the other library
        close = [f"{'torchvision' if library == 'timm' else 'timm'}:{name}"]
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return ProbeError(
        f"there is no model '{name}' in {library or 'timm or torchvision'}.{hint} List the models on this machine: "
        "task2vec models --offline"
    )


def _from_timm(name: str, given: _Weights | None, size: int | None, options: dict[str, Any]) -> _Loaded:
    import timm
    from timm.data.config import resolve_model_data_config

    try:  # networks made for one size (vision transformers) take it as an argument; convolutional ones refuse it
        model = timm.create_model(name, img_size=size).eval()
    except TypeError:
        model = timm.create_model(name).eval()
    tensors, source = given or sources.find_timm_weights(model, **options)
    heads = _find_timm_heads(model)
    _assign_weights(model, tensors, heads, name)
    return model, heads, _timm_preprocess(resolve_model_data_config(model), size), source


def _find_timm_heads(model: Any) -> tuple[str, ...]:
    heads = model.pretrained_cfg.get("classifier") or "head"
    return (heads,) if isinstance(heads, str) else tuple(heads)


def _timm_preprocess(cfg: dict[str, Any], size: int | None) -> Preprocess | CustomPreprocess:
    is_square = cfg["input_size"][-1] == cfg["input_size"][-2]
    is_ours = cfg["crop_mode"] == "squash" or (cfg["crop_mode"] == "center" and is_square)
    if not is_ours or cfg["interpolation"] not in INTERPOLATIONS:
        import timm

        return check_transform(timm.data.create_transform(**{**cfg, "input_size": (3, size, size)} if size else cfg))  # type: ignore[arg-type]
    shape = (size, size) if size else tuple(cfg["input_size"][-2:])
    whole = tuple(int(side / cfg["crop_pct"]) for side in shape)
    squash = whole if cfg["crop_mode"] == "squash" else None
    mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
    return Preprocess(shape, min(whole), cfg["interpolation"], mean, std, squash)  # type: ignore[arg-type]


def _from_torchvision(name: str, given: _Weights | None, size: int | None, options: dict[str, Any]) -> _Loaded:
    enum = find_torchvision_enum(name)
    network = name.partition(".")[0]
    # A vision transformer is built for one image size, and weights of one network may differ in it.
    built = {"image_size": enum.transforms().crop_size[0]} if network.startswith("vit_") else {}
    model = models.get_model(network, weights=None, **built, **_AS_TRAINED.get(network, {})).eval()
    tensors, source = given or sources.find_torchvision_weights(name, enum, **options)
    tensors = {_OLD_NAMES.sub(r"\1", key): values for key, values in tensors.items()}
    head = _find_classifier(model)
    _assign_weights(model, tensors, (head,), name)
    return model, (head,), _torchvision_preprocess(enum.transforms(), size), source


def find_torchvision_enum(name: str) -> Any:
    """Torchvision's weights of that name: those of its tag, or the default ones.

    Example:
        >>> find_torchvision_enum("resnet34").name, find_torchvision_enum("resnet50").name
        ('IMAGENET1K_V1', 'IMAGENET1K_V2')
        >>> find_torchvision_enum("resnet50.IMAGENET1K_V1").name
        'IMAGENET1K_V1'
    """
    network, _, tag = name.partition(".")
    known: Any = models.get_model_weights(network)
    return known[tag] if tag else known.DEFAULT


def _torchvision_preprocess(recipe: Any, size: int | None) -> Preprocess:
    crop, resize = recipe.crop_size[0], recipe.resize_size[0]
    if size is not None:
        crop, resize = size, round(size * resize / crop)
    return Preprocess((crop, crop), resize, recipe.interpolation.value, tuple(recipe.mean), tuple(recipe.std))


def _find_classifier(model: nn.Module) -> str:
    """The last linear layer; a SqueezeNet has none, and a convolution in its place."""
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else "classifier"


def _assign_weights(model: nn.Module, tensors: dict[str, Tensor], heads: tuple[str, ...], name: str) -> None:
    """Copies `tensors` into `model`; only the head may be missing or of another shape, for it is replaced anyway."""
    wanted = model.state_dict()
    in_head = tuple(f"{head}." for head in heads)
    if any(_find_misfits(wanted, tensors, in_head).values()):
        tensors = _adapt(model, tensors)
    misfits = _find_misfits(wanted, tensors, in_head)
    if any(misfits.values()):
        counts = ", ".join(f"{len(names)} {kind} ({', '.join(names[:3])})" for kind, names in misfits.items())
        raise WeightsError(
            f"these weights do not fit '{name}': {counts}. A partly loaded probe would be random. "
            f"Check the model's name: timm:{name} and torchvision:{name} name their weights differently."
        )
    fitting = {k: v.to(wanted[k].dtype) for k, v in tensors.items() if k in wanted and v.shape == wanted[k].shape}
    model.load_state_dict(fitting, strict=False)


def _find_misfits(wanted: dict[str, Tensor], tensors: dict[str, Tensor], in_head: tuple[str, ...]) -> dict[str, list]:
    """Names of tensors that do not fit, by the reason; without the head and the counters of batch-norm."""
    needed = [k for k in wanted if not k.startswith(in_head)]
    # Old files name weights of auxiliary heads that today's networks do not have; unknown names elsewhere are a mix-up.
    ignored = (*in_head, "AuxLogits", "aux")
    return {
        "missing": [k for k in needed if k not in tensors and not k.endswith("num_batches_tracked")],
        "unknown": [k for k in tensors if k not in wanted and not k.startswith(ignored)],
        "of another shape": [k for k in needed if k in tensors and tensors[k].shape != wanted[k].shape],
    }


def _adapt(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` renamed and resampled to the model's image size by timm's own rule, if it has one."""
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    try:
        return adapt(dict(tensors), model) if adapt else tensors
    # Made for another network: they stay misfits.
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):
        return tensors
