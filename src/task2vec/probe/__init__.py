"""Frozen pretrained networks by name, each with its preprocessing and a fingerprint.

Names are imported on first use: the layers of a saved embedding need no torch.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.probe.layers import FilterLayer
    from task2vec.probe.load import is_timm_model, is_torchvision_model, list_probes, load_probe
    from task2vec.probe.probe import (
        IMAGENET_MEAN,
        IMAGENET_STD,
        FlippedConv2d,
        PreparedNetwork,
        Preprocess,
        Probe,
        make_probe,
    )
    from task2vec.probe.weights import read_weights

__getattr__ = lazy_names(__name__)
