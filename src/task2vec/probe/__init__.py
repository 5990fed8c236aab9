"""A name becomes a frozen network, its preprocessing and a fingerprint."""

from task2vec.probe.filters import FilterLayer
from task2vec.probe.folding import PreparedNetwork
from task2vec.probe.load import DEFAULT_PROBE, list_probes, load_probe
from task2vec.probe.probe import Probe

__all__ = ["DEFAULT_PROBE", "FilterLayer", "PreparedNetwork", "Probe", "list_probes", "load_probe"]
