"""A name becomes a frozen network, its preprocessing and a fingerprint.

Names are resolved on first use: the layers of a saved embedding need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec.probe.folding import PreparedNetwork
    from task2vec.probe.layers import FilterLayer
    from task2vec.probe.listing import list_probes
    from task2vec.probe.load import DEFAULT_PROBE, load_probe
    from task2vec.probe.probe import Probe

__all__ = ["DEFAULT_PROBE", "FilterLayer", "PreparedNetwork", "Probe", "list_probes", "load_probe"]

_FILES = {
    "DEFAULT_PROBE": "load",
    "FilterLayer": "layers",
    "PreparedNetwork": "folding",
    "Probe": "probe",
    "list_probes": "listing",
    "load_probe": "load",
}


def __getattr__(name: str) -> object:
    """The public name, from its file."""
    if name not in _FILES:
        raise AttributeError(f"module 'task2vec.probe' has no attribute {name!r}")
    return getattr(import_module(f"task2vec.probe.{_FILES[name]}"), name)
