"""Where `make_tiny` was: now in tests/tiny_probe.py."""

from tests.tiny_probe import make_tiny

__all__ = ["make_tiny"]
