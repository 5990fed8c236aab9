"""Add the pretrained networks of the installed timm and torchvision to the table of the package.

    python -m experiments.models [--imagenet FILE] [--out src/task2vec/select/data/models.csv]

Rows of the table stay; those that it lacks are added, so that it has the networks of several versions. Parameters and
GMACs are counted on torch's meta device, without weights and without the head. FILE is results-imagenet.csv of
huggingface/pytorch-image-models, for those that are new; torchvision has its own figures. Accuracies in the table, and
the GMACs of networks that have one, are from its commit aa4b585 (Apache-2.0); ours differ from these by up to 7 %.
Left out are networks whose weights are not on a hub, those that do not return one vector of features per image, and
vision encoders of language models, whose names do not say what they were trained on.
"""

import csv
import io
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from timm.models import get_pretrained_cfg
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models as torchvision_models

from task2vec.plots import write_file

OUT = Path(__file__).resolve().parents[1] / "src" / "task2vec" / "select" / "data" / "models.csv"
COLUMNS = ("name", "size", "params", "gmacs", "imagenet", "license", "pretraining", "file")
# First match counts. The tag of a network, behind the dot, names its data; some names say it themselves.
PRETRAINING = {
    "image-text": r"clip|openai|laion|webli|siglip|datacomp|dfn|metaclip|merged2b|yfcc15m|cc12m|pe_|aimv2|radio|ogvl",
    "self-supervised": r"dino|lvd|ijepa|seer|_ssl_|sapiens|lingbot",
    "masked images": r"mae|mim_|beit|data2vec|eva_|eva02_|sam2|sa1b",
    "web labels": r"jft|ig1b|swag|wsl|bamboo|florence",
    "in21k": r"in21k|in22k|in12k|inw21k|m30m",
    "in1k": r"in1k|torchvision:",
}


def find_pretraining(name: str) -> str:
    """The kind of pretraining that a name stands for; empty if it does not say."""
    return next((kind for kind, pattern in PRETRAINING.items() if re.search(pattern, name, re.I)), "")


def count_costs(network: nn.Module, size: int) -> tuple[int, float] | None:
    """Parameters and GMACs of a network on the meta device; None if it does not return one vector per image."""
    network = network.eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        features = network(torch.zeros(1, 3, size, size, device="meta"))
    is_vector = isinstance(features, torch.Tensor) and features.ndim == 2
    return (sum(p.numel() for p in network.parameters()), counter.get_total_flops() / 2e9) if is_vector else None


def describe_timm(name: str, accuracies: dict[str, float], known: dict[tuple[str, int], Any]) -> dict[str, Any] | None:
    """The row of a network of timm, or None if there is nothing to load or to measure; `known` are costs by size."""
    config, kind = get_pretrained_cfg(name), find_pretraining(name)
    if config is None or not config.hf_hub_id or not kind:
        return None
    network, size = name.partition(".")[0], config.input_size[-1]
    if (network, size) not in known:
        try:
            with torch.device("meta"):
                known[network, size] = count_costs(timm.create_model(name, num_classes=0), size)
        except (RuntimeError, NotImplementedError, TypeError, AssertionError, AttributeError):
            known[network, size] = None
    if (costs := known[network, size]) is None:
        return None
    file = "" if config.hf_hub_id == f"timm/{name}" else config.hf_hub_id
    row = {"name": name, "size": size, "params": costs[0], "gmacs": f"{costs[1]:.3f}", "file": file}
    row |= {"license": config.license or "unknown", "pretraining": kind}
    return row | {"imagenet": accuracies.get(name, "")}


def describe_torchvision(network: str, weights: Any) -> dict[str, Any]:
    """The row of a network of torchvision."""
    size = weights.transforms().crop_size[0]
    options: dict[str, Any] = {"image_size": size} if network.startswith("vit_") else {}
    options |= {"init_weights": False} if network in ("googlenet", "inception_v3") else {}
    model = torchvision_models.get_model(network, weights=None, **options).to("meta")
    for auxiliary in ("aux1", "aux2", "AuxLogits"):
        if hasattr(model, auxiliary):
            setattr(model, auxiliary, None)
    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    head = layers[-1][0] if layers else "classifier"  # of SqueezeNet, whose classifier is a convolution
    parent, _, child = head.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity() if layers else nn.Flatten())
    costs = count_costs(model, size)
    assert costs is not None
    accuracy = weights.meta["_metrics"]["ImageNet-1K"]["acc@1"] / 100
    row = {"name": f"torchvision:{network}.{weights.name}", "size": size, "params": costs[0]}
    row |= {"gmacs": f"{costs[1]:.3f}", "imagenet": f"{accuracy:.5f}", "license": "bsd-3-clause"}
    kind = "web labels" if "SWAG" in weights.name else "in1k"
    return row | {"pretraining": kind, "file": Path(weights.url).name}


def read_table(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table by name; none if there is no file."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def put_defaults_first(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows by name, but the tag first that a library loads where none is given."""
    groups = defaultdict(list)
    for name in sorted(rows):
        groups[name.partition(".")[0]].append(rows[name])
    for network, group in groups.items():
        library, _, short = network.rpartition(":")
        if library:
            weights: Any = torchvision_models.get_model_weights(short)
            default = f"{network}.{weights.DEFAULT.name}"
        else:
            config = get_pretrained_cfg(short) if timm.is_model(short) else None
            default = f"{short}.{config.tag}" if config is not None else ""
        group.sort(key=lambda row, default=default: row["name"] != default)
    return [row for group in groups.values() for row in group]


def main(
    imagenet: Annotated[Path | None, typer.Option(help="results-imagenet.csv of timm.")] = None,
    out: Annotated[Path, typer.Option(help="The table.")] = OUT,
) -> None:
    """Add the pretrained networks of the installed timm and torchvision to the table of the package."""
    rows, costs = read_table(out), dict[tuple[str, int], Any]()
    published = (
        {} if imagenet is None else {r.pop("model"): float(r["top1"]) / 100 for r in csv.DictReader(imagenet.open())}
    )
    for row in rows.values():
        if row["params"] and row["gmacs"] and ":" not in row["name"]:
            costs[row["name"].partition(".")[0], int(row["size"])] = (int(row["params"]), float(row["gmacs"]))
    dropped = 0
    for name in timm.list_pretrained():
        if name not in rows:
            row = describe_timm(name, published, costs)
            dropped += row is None
            rows |= {} if row is None else {name: row}
    for network in torchvision_models.list_models(module=torchvision_models):
        for weights in torchvision_models.get_model_weights(network):
            if math.isnan(weights.meta["_metrics"]["ImageNet-1K"]["acc@1"]):  # not a classifier: features of VGG
                continue
            if f"torchvision:{network}.{weights.name}" not in rows:
                row = describe_torchvision(network, weights)
                rows[row["name"]] = row
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *([row[column] for column in COLUMNS] for row in put_defaults_first(rows))])
    write_file(out, text.getvalue().encode())
    print(f"{len(rows)} networks; left out: {dropped}")


if __name__ == "__main__":
    typer.run(main)
