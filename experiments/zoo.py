"""Make the zoo of the package from published tables: models of timm with ImageNet results, and what others measured.

    python -m experiments.zoo --tables DIR [--out src/task2vec/select/data] [--no-fit]

DIR has the results of timm (timm-results-*.csv, timm-*-speed.csv of huggingface/pytorch-image-models) and
public_cells.csv: accuracies that others published, with columns source, model, timm, dataset, protocol, metric, value.
Models get the name by which they are loaded: that of timm, `torchvision:NAME`, or `open_clip:ARCHITECTURE/WEIGHTS`.
What has no such name, is not an accuracy or cannot be true is dropped, and counted on standard output. Written are
`zoo.csv` (models), `published.csv.gz` (errors), and `variances.json`, the fit of `task2vec.select.zoo`.
"""

import csv
import gzip
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.optimize import minimize

import task2vec as t2v
from experiments.report import make_app
from task2vec import plots
from task2vec.experts import find_shots
from task2vec.select import CELL_COLUMNS, MODEL_COLUMNS, UNKNOWN, VARIANCES, Posterior, Variances, Zoo, read_zoo

OUT = Path(__file__).resolve().parents[1] / "src" / "task2vec" / "select" / "data"
RESULTS = {"imagenet": "imagenet", "real": "imagenet-real", "r": "imagenet-r", "sketch": "sketch"}
# The names under which the networks of our own meta-task are in the zoo. ResNet-34 and Keras' ResNet-50 are not: what
# loads by their names has other weights. The convolutions of VGG-16 are those of torchvision. The variances of the
# package were fitted with ResNet-34 under torchvision's name (--no-fit keeps them): with a single network in the table
# of fine-tuning, its noise is unknown.
OURS = {f"tf_efficientnet_lite{number}": f"tf_efficientnet_lite{number}.in1k" for number in range(3)}
OURS |= {"mobilenet_v2": "torchvision:mobilenet_v2", "vgg16_features": "vgg16.tv_in1k"}
# Where logarithms of variances start and are drawn to, and by how much (standard deviation): model, way, table, slope,
# slope by way, noise.
START = np.log([0.03, 0.003, 0.01, 0.05, 0.005, 0.05])
SPREAD = 2.0
# Tables of one network tuned in many ways say nothing about models.
ONE_NETWORK = ("V-PETL",)
# Its datasets of which all images were used, and how it calls the training of all weights.
WHOLE_DATASETS = ("CUB-200-2011", "NABirds", "Oxford Flowers", "Stanford Dogs", "Stanford Cars")
FULL = "Full fine-tuning"
# Worst region and F1: no accuracies, although the source puts them into the same table.
OTHER_METRICS = {("OpenCLIP", "FMoW"), ("OpenCLIP", "iWildCam")}
# How tables spell the name of a dataset, in lower case, without blanks and hyphens, where it is not the usual one.
SPELLINGS = {
    "aircraft": "fgvcaircraft",
    "camelyon": "patchcamelyon",
    "cars": "stanfordcars",
    "clevrcount": "clevrcounts",
    "clevrdist": "clevrdistance",
    "describabletextures": "dtd",
    "diabetic_retinopathy_detection": "retinopathy",
    "flowers": "flowers102",
    "food": "food101",
    "food101classification": "food101",
    "imagenet1k": "imagenet",
    "kittidist": "kitti",
    "kittivehicledistance": "kitti",
    "oxfordflowers102": "flowers102",
    "oxfordflowersclassification": "flowers102",
    "oxfordiiitpet": "pets",
    "oxfordpets": "pets",
    "pascalvoc2007": "voc2007",
    "patch_camelyon": "patchcamelyon",
    "snorbazim": "smallnorb_label_azimuth",
    "snorbelev": "smallnorb_label_elevation",
}
# First match counts. The tag of a model, behind the dot, names its data; some names say it themselves.
PRETRAINING = {
    "image-text": r"clip|openai|laion|webli|siglip|datacomp|dfn|metaclip|merged2b|yfcc15m|cc12m|pe_core|open_clip:",
    "self-supervised": r"dino|lvd|ijepa|seer|_ssl_",
    "masked images": r"mae|mim_|beit|data2vec|eva_|eva02_",
    "web labels": r"jft|ig1b|swag|wsl",
    "in21k": r"in21k|in22k|in12k|inw21k|m30m",
    "in1k": r"in1k|torchvision:",
}
# Image towers of OpenCLIP, as timm calls them: for sizes, and for weights that timm has under another name. Most follow
# from their names ("ViT-L-14-336"), whatever text encoder is beside them; others are listed.
TRANSFORMER = re.compile(r"(?:.*[-_])?(ViT|EVA0\d)-(\w+)-(\d\d)(?:-plus|-CLIPA)?(?:-(\d{3}))?(-quickgelu)?")
SERIES = {"ViT": "vit", "EVA01": "eva", "EVA02": "eva02"}
WIDTHS = {"B": "base", "L": "large", "H": "huge", "g": "giant", "bigG": "gigantic", "E": "enormous"}
TOWERS = {
    "ViT-B-16-plus-240": "vit_base_patch16_plus_clip_240",
    "ViT-B-16-SigLIP-i18n-256": "vit_base_patch16_siglip_256",
    "ViT-bigG-14-CLIPA-336": "",  # not in timm at this size
    "nllb-clip-base": "vit_base_patch32_clip_224",
    "nllb-clip-large": "vit_huge_patch14_clip_224",
    "nllb-clip-base-siglip": "vit_base_patch16_siglip_384",
    "nllb-clip-large-siglip": "vit_so400m_patch14_siglip_384",
}
# Weights of OpenCLIP whose name in timm is not theirs without images seen and batch size.
TAGS = {
    "webli": "webli_i18n",  # only of the i18n tower above; the table has the other ones
    "metaclip_fullcc": "metaclip_2pt5b",
    "datacomp_s34b_b86k": "datacompxl",
    "laion2b_s9b_b144k": "laion2b_plus",
    "laion2b_s12b_b42k": "",  # timm has those of more images
    "laion2b_s34b_b82k_augreg_rewind": "laion2b_rewind",
    "laion2b_s34b_b82k_augreg_soup": "laion2b_soup",
}


def find_pretraining(name: str) -> str:
    """What a model was pretrained on, or how, from its name; empty if the name does not say it."""
    return next((kind for kind, pattern in PRETRAINING.items() if re.search(pattern, name)), "")


def name_tower(architecture: str) -> str:
    """What timm calls the image tower of an architecture of OpenCLIP; empty if it has none.

    Example:
        >>> name_tower("ViT-H-14-378-quickgelu"), name_tower("coca_ViT-L-14"), name_tower("RN50"), name_tower("RN50x4")
        ('vit_huge_patch14_clip_quickgelu_378', 'vit_large_patch14_clip_224', 'resnet50_clip', '')
        >>> name_tower("convnext_base_w"), name_tower("convnext_large_d_320")
        ('convnext_base', 'convnext_large_mlp')
    """
    if architecture in TOWERS:
        return TOWERS[architecture]
    if found := TRANSFORMER.fullmatch(architecture):
        series, width, patch, size, activation = found.groups(default="")
        return f"{SERIES[series]}_{WIDTHS[width]}_patch{patch}_clip{activation.replace('-', '_')}_{size or 224}"
    if found := re.fullmatch(r"RN(\d+)(-quickgelu)?", architecture):
        return f"resnet{found[1]}_clip"
    is_convolutional = architecture.startswith("convnext")
    return re.sub(r"(_w)?(_320)?$", "", architecture).replace("_d", "_mlp") if is_convolutional else ""


def name_weights(architecture: str, weights: str) -> str:
    """What timm calls weights of OpenCLIP, if it has them.

    Example:
        >>> name_weights("ViT-B-32", "laion2b_s34b_b79k"), name_weights("convnext_large_d_320", "laion2b_s29b_b131k_ft")
        ('laion2b', 'clip_laion2b_ft_320')
    """
    tag = TAGS.get(weights, re.sub(r"_s\d+b_b\d+k", "", weights)).replace("laion_aesthetic", "laiona")
    if architecture.startswith("convnext"):
        return f"clip_{tag}_320" if architecture.endswith("_320") else f"clip_{tag}"
    return tag


def name_model(row: dict[str, str], known: set[str]) -> str | None:
    """The name by which the model of a cell is loaded today; None if timm, torchvision and open_clip have none."""
    source, model = row["source"], row["model"]
    if source == "OpenCLIP":
        architecture, weights = model.split(" ")
        name = f"{name_tower(architecture)}.{name_weights(architecture, weights)}"
        # Towers beside other text encoders have weights of their own.
        if name in known and not architecture.startswith(("coca_", "roberta")):
            return name
        is_i18n = "i18n" in architecture
        return row["timm"] if row["timm"] in known and not is_i18n else f"open_clip:{architecture}/{weights}"
    if source == "SFDA group1":
        return f"{model}.tv_in1k" if f"{model}.tv_in1k" in known else f"torchvision:{model}"
    return row["timm"] if row["timm"] in known else None


def read_cells(path: Path, known: set[str], dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    """The cells that are accuracies and can be true, as errors, each with the name that its model is loaded by."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        columns[row["source"], row["protocol"], row["dataset"]].append(float(row["value"]))
    for row in rows:
        value, middle = float(row["value"]), statistics.median(columns[row["source"], row["protocol"], row["dataset"]])
        is_other = (row["source"], row["dataset"]) in OTHER_METRICS
        if row["metric"] not in ("accuracy", "balanced accuracy") or is_other:
            dropped["cells that are no accuracies"] += 1
        elif row["source"].startswith(ONE_NETWORK):
            dropped["cells of one network, tuned in many ways"] += 1
        elif row["dataset"].endswith("/test"):
            dropped["cells of a second split of the same images"] += 1
        elif middle < 0.02:
            dropped["cells of a dataset on which most models are at chance"] += 1
        elif not 0 <= value <= 1 or (value < 0.01 and middle > 0.5):
            dropped["cells that cannot be true"] += 1
        else:
            dataset = row["dataset"].lower().replace(" ", "").replace("-", "")
            cell = {key: row[key] for key in ("source", "protocol")}
            cell["dataset"] = SPELLINGS.get(dataset, dataset)
            yield cell | {"model": name_model(row, known), "original": row["model"], "error": 1 - value}


def lora_cells(path: Path) -> list[dict[str, Any]]:
    """Errors of one network by fine-tuning all of its weights and by LoRA: on VTAB with 1,000 images, else with all."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith(ONE_NETWORK)]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        found[row["dataset"]][row["model"]] = round(1 - float(row["value"]), 4)
    return [
        {"dataset": name, "images": "all" if name in WHOLE_DATASETS else "1000", "full": own[FULL], "lora": own["LoRA"]}
        for name, own in sorted(found.items())
        if {FULL, "LoRA"} <= own.keys()
    ]


def measured_cells() -> Iterator[dict[str, Any]]:
    """Our own errors as one more table for each way: on whole datasets, with half of the images."""
    metatask = t2v.bundled_metatask()
    half = list(map(find_shots, metatask.protocols)).index("half")
    found = [
        ("linear, half", row, column, float(error))
        for (row, column), error in np.ndenumerate(metatask.mean_errors()[:, :, half])
    ]
    places = {task.name: row for row, task in enumerate(metatask.tasks)}
    columns = {model.name: column for column, model in enumerate(metatask.models)}
    found += [
        ("fine-tuned, half", places[point["task"]], columns[point["expert"]], point["error"])
        for point in metatask.info["curves"]
        if point["train"] == "half"
    ]
    for protocol, row, column, error in found:
        task, model = metatask.tasks[row], OURS.get(metatask.models[column].name)
        if model is not None and (task.family == "sources" or task.name == task.dataset):
            cell = {"source": "task2vec", "protocol": protocol, "dataset": task.name, "model": model}
            yield cell | {"original": model, "error": error}


def merge_cells(cells: list[dict[str, Any]], dropped: Counter[str]) -> list[dict[str, Any]]:
    """Cells of named models, those of one model on one dataset of one table averaged; others are dropped."""
    merged: dict[Any, list[float]] = defaultdict(list)
    lost = {(cell["source"], cell["original"]) for cell in cells if cell["model"] is None}
    for cell in cells:
        if cell["model"] is None:
            dropped["cells of models that cannot be loaded by name"] += 1
        else:
            merged[tuple(cell[key] for key in CELL_COLUMNS[:-1])].append(cell["error"])
    dropped["models that cannot be loaded by name"] += len(lost)
    dropped["cells averaged, since two names mean one model"] += sum(len(errors) - 1 for errors in merged.values())
    keys = sorted(merged)
    return [
        {**dict(zip(CELL_COLUMNS, key, strict=False)), "error": f"{statistics.mean(merged[key]):.4f}"} for key in keys
    ]


def describe_models(tables: Path, evidence: set[str]) -> list[dict[str, Any]]:
    """Rows of models with ImageNet results or published cells: sizes, speeds, accuracies, licence, pretraining.

    The licence is what timm states of the weights. torchvision and open_clip state none, so it is unknown.
    """
    import timm
    import torch
    import torchvision

    results: dict[str, dict[str, list[dict[str, str]]]] = {}
    for column, file in RESULTS.items():
        results[column] = _group(tables / f"timm-results-{file}.csv")
    speeds = {device: _group(tables / f"timm-{device}-speed.csv") for device in ("cpu", "gpu")}
    found = []
    for name in sorted(set(results["imagenet"]) | evidence):
        row: dict[str, Any] = dict.fromkeys(MODEL_COLUMNS, "") | {"name": name, "license": UNKNOWN}
        row["pretraining"] = find_pretraining(name)
        library, _, own = name.rpartition(":")
        tower = name_tower(own.partition("/")[0]) if library == "open_clip" else own
        if library == "torchvision":
            weights = torchvision.models.get_model_weights(own)["IMAGENET1K_V1"]
            row["size"] = weights.transforms().crop_size[0]
            row |= {"params": weights.meta["num_params"], "gmacs": weights.meta["_ops"]}
            row["imagenet"] = round(next(iter(weights.meta["_metrics"].values()))["acc@1"] / 100, 5)
        elif tower:
            config: Any = timm.models.get_pretrained_cfg(tower)
            row["size"] = config.input_size[-1]
            row["license"] = UNKNOWN if library else config.license or UNKNOWN
            rows = {column: _at_size(results[column].get(name, []), row["size"], "img_size") for column in RESULTS}
            row |= {column: round(float(one["top1"]) / 100, 5) for column, one in rows.items() if one}
            architecture = tower.partition(".")[0]
            for device in speeds:
                timed = _at_size(speeds[device].get(architecture, []), row["size"], "infer_img_size", exact=True)
                row |= {device: float(timed["infer_samples_per_sec"]), "gmacs": timed["infer_gmacs"]} if timed else {}
            if rows["imagenet"]:
                row["params"] = round(float(rows["imagenet"]["param_count"].replace(",", "")) * 1e6)
            else:
                with torch.device("meta"):
                    network = timm.create_model(architecture, num_classes=0)
                row["params"] = sum(each.numel() for each in network.parameters())
        found.append(row)
    return found


def _group(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of a table of timm by model."""
    found = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["model"]].append(row)
    return found


def _at_size(rows: list[dict[str, str]], size: int, column: str, *, exact: bool = False) -> dict[str, str] | None:
    """The row at the size of the model's images, or else the one at the nearest size."""
    nearest = min(rows, key=lambda row: abs(int(row[column]) - size), default=None)
    return None if nearest is None or (exact and int(nearest[column]) != size) else nearest


# --- the fit ---------------------------------------------------------------------------------------------------------


def weigh(posterior: Posterior) -> tuple[float, np.ndarray]:
    """Minus the log likelihood of the cells, and its gradient by the logarithms of all variances."""
    solved, variances = posterior, posterior.variances
    models, tables = solved.places
    weights = 1 / solved.noise[tables]
    fitted = (solved.scaled**2 * weights).sum() - (solved.sums_y * solved.pull_y).sum()
    fitted -= solved.evidence @ solved.shared
    log_det = solved.log_det + np.log(solved.prior).sum() - np.linalg.slogdet(solved.spread)[1]
    # By the covariances of effects in two tables, of shared effects, and of noise.
    effects, known = solved.pull_y - solved.pull @ solved.shared, np.unique(models)
    left = (solved.sums - solved.weights[:, :, None] * solved.pull)[known]
    rest = (solved.sums_y - solved.sums @ solved.shared - solved.weights * effects)[known]
    own = solved.weights[known]
    each = own[:, :, None] * (np.eye(own.shape[1]) - solved.effects[known] * own[:, None])
    each -= left @ solved.spread @ left.transpose(0, 2, 1) + rest[:, :, None] * rest[:, None]
    by_effects = each.sum(0) / 2
    by_prior = (1 - (np.diag(solved.spread) + solved.shared**2) / solved.prior) / 2
    start, width = len(solved.columns), solved.covariates.shape[1]
    cells = solved.design - solved.pull[solved.places]
    residuals = solved.scaled - solved.design @ solved.shared - effects[solved.places]
    unsure = ((cells @ solved.spread) * cells).sum(1) + solved.effects[models, tables, tables] + residuals**2
    by_noise = (1 - unsure * weights) / 2
    gradient = [
        variances.model * by_effects.sum(),
        variances.way * (by_effects * (solved.ways[:, None] == solved.ways)).sum(),
        variances.table * np.trace(by_effects),
        by_prior[start : start + width].sum(),
        by_prior[start + width :].sum(),
        *np.bincount(tables, by_noise),
    ]
    return float(fitted + log_det) / 2, np.array(gradient)


def fit_variances(zoo: Zoo, start: Variances | None = None, *, steps: int = 60) -> Variances:
    """The variances of the highest likelihood under weak priors, by L-BFGS."""
    tables = sorted({cell.table for cell in zoo.cells})
    centre = np.concatenate([START[:5], np.full(len(tables), START[5])])

    def name(logs: np.ndarray) -> Variances:
        values = np.exp(logs).tolist()
        return Variances(*values[:5], noise=dict(zip(tables, values[5:], strict=True)))

    def cost(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = weigh(replace(zoo, variances=name(logs)).posterior)
        away = (logs - centre) / SPREAD
        return value + float(away @ away) / 2, gradient + away / SPREAD

    first = centre if start is None else np.log([*start[:5], *(start.noise[table] for table in tables)])
    return name(minimize(cost, first, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 1e-7}).x)


def zoo(
    tables: Annotated[Path, typer.Option(help="Folder with the published tables.")],
    out: Annotated[Path, typer.Option(help="Where to write the data.")] = OUT,
    no_fit: Annotated[bool, typer.Option("--no-fit", help="Keep the variances.")] = False,
) -> None:
    """Write the files, and print what they contain and what was dropped."""
    import timm

    dropped: Counter[str] = Counter()
    cells = list(read_cells(tables / "public_cells.csv", set(timm.list_pretrained()), dropped))
    merged = merge_cells([*cells, *measured_cells()], dropped)
    models = describe_models(tables, {row["model"] for row in merged})
    plots.make_folder(out)
    every = {"zoo.csv": models, "lora.csv": lora_cells(tables / "public_cells.csv"), "published.csv": merged}
    for name, rows in every.items():
        header = list(rows[0])
        assert all(list(row) == header for row in rows), "cells would stand in the columns of others"
        plots.write_rows(out / name, [header, *([row[column] for column in header] for row in rows)])
    (out / "published.csv.gz").write_bytes(gzip.compress((out / "published.csv").read_bytes(), mtime=0))
    (out / "published.csv").unlink()
    if not no_fit:
        file, first = out / VARIANCES, Variances(*np.exp(START[:5]).tolist(), noise={})
        file.write_text(json.dumps(first._asdict()), encoding="utf-8")
        file.write_text(json.dumps(fit_variances(read_zoo(out))._asdict(), indent=1) + "\n", encoding="utf-8")
    kinds = Counter(row["pretraining"] or "unknown" for row in models)
    homes = Counter(row["name"].partition(":")[0] if ":" in row["name"] else "timm" for row in models)
    print(f"{len(models)} models, {len(merged)} cells of {len({row['model'] for row in merged})} models")
    print(f"by library {dict(homes)}, by pretraining {dict(kinds)}; dropped: {json.dumps(dropped, indent=1)}")


app = make_app(zoo)

if __name__ == "__main__":
    app()
