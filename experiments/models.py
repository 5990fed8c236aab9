"""Add the pretrained networks of the installed timm to the table of the package.

    python -m experiments.models [--imagenet FILE] [--out src/task2vec/select/data/models.csv]

Rows of the table stay; those that it lacks are added, so that it has the networks of several versions. torchvision
adds no networks any more: its rows were made by commit 507e0f77. Parameters and GMACs are counted on torch's meta
device, without weights and without the head. FILE is results-imagenet.csv of huggingface/pytorch-image-models, for
those that are new. Accuracies in the table, and the GMACs of networks that have one, are from its commit aa4b585
(Apache-2.0); ours differ from these by up to 7 %. Left out are networks whose weights are not on a hub, those that do
not return one vector of features per image, and vision encoders of language models, whose names do not say what they
were trained on.
"""

import csv
import io
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


def put_defaults_first(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows by name, but the tag first that timm loads where none is given; tags of torchvision keep their order."""
    groups = defaultdict(list)
    for name, row in rows.items():
        groups[name.partition(".")[0]].append(row)
    for network, group in groups.items():
        if ":" not in network:
            config = get_pretrained_cfg(network) if timm.is_model(network) else None
            default = f"{network}.{config.tag}" if config is not None else ""
            group.sort(key=lambda row, default=default: (row["name"] != default, row["name"]))
    return [row for network in sorted(groups) for row in groups[network]]


def main(
    imagenet: Annotated[Path | None, typer.Option(help="results-imagenet.csv of timm.")] = None,
    out: Annotated[Path, typer.Option(help="The table.")] = OUT,
) -> None:
    """Add the pretrained networks of the installed timm to the table of the package."""
    with out.open(encoding="utf-8", newline="") as file:
        rows: dict[str, dict[str, Any]] = {row["name"]: row for row in csv.DictReader(file)}
    accuracies, costs, dropped = {}, dict[tuple[str, int], Any](), 0
    if imagenet is not None:
        accuracies = {row["model"]: float(row["top1"]) / 100 for row in csv.DictReader(imagenet.open(encoding="utf-8"))}
    for row in rows.values():
        if row["params"] and row["gmacs"] and ":" not in row["name"]:
            costs[row["name"].partition(".")[0], int(row["size"])] = (int(row["params"]), float(row["gmacs"]))
    for name in timm.list_pretrained():
        if name not in rows:
            row = describe_timm(name, accuracies, costs)
            dropped += row is None
            rows |= {} if row is None else {name: row}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *([row[column] for column in COLUMNS] for row in put_defaults_first(rows))])
    write_file(out, text.getvalue().encode())
    print(f"{len(rows)} networks; left out: {dropped}")


if __name__ == "__main__":
    typer.run(main)
