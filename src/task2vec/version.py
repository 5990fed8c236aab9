"""The version of the code, for all that records it; the metadata of an installation may be absent or older."""

__version__ = "0.1.0"
