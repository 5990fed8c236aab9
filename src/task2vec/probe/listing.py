"""Which named probes can be loaded on this machine without fetching anything."""

from pathlib import Path
from typing import Any

from task2vec.probe.weights import OFFLINE_PACKAGES, find_in_hub_cache, is_offline_package_installed


def list_probes() -> list[dict[str, Any]]:
    """The probes we know a local source of, as rows of name, source and whether the weights are there.

    Example:
        >>> [row["name"] for row in list_probes() if row["source"].startswith("offline")][0]
        'tf_efficientnet_lite0'
    """
    rows = [
        {"name": name, "source": f"offline package {package[0]}", "is_local": is_offline_package_installed(name)}
        for name, package in OFFLINE_PACKAGES.items()
    ]
    return rows + _in_hub_cache() + _in_torch_cache()


def _in_hub_cache() -> list[dict[str, Any]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = {folder.name for folder in Path(HF_HUB_CACHE).glob("models--*")}
    if not folders:
        return []
    import timm

    rows = []
    for name in timm.list_pretrained():
        config = timm.models.get_pretrained_cfg(name)
        repo = config.hf_hub_id if config else None
        if repo and "models--" + repo.replace("/", "--") in folders and find_in_hub_cache(repo):
            rows.append({"name": name, "source": f"hub cache {repo}", "is_local": True})
    return rows


def _in_torch_cache() -> list[dict[str, Any]]:
    import torch

    checkpoints = Path(torch.hub.get_dir()) / "checkpoints"
    files = {file.name for file in checkpoints.glob("*")}
    if not files:
        return []
    from torchvision import models

    return [
        {"name": f"torchvision:{name}", "source": "torch cache", "is_local": True}
        for name in models.list_models(module=models)
        if any(Path(weights.url).name in files for weights in models.get_model_weights(name))
    ]
