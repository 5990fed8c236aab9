"""Errors that are expected, errors that are caused, and damaged files."""

from unittest.mock import Mock

import pytest


def flip(path, place, mask=0x40):
    """Changes one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)


def refuse(error, words, ask, *given, **options):
    """The error that asking raises, of this class and with these words."""
    with pytest.raises(error, match=words) as caught:
        ask(*given, **options)
    return caught.value


def fail(error):
    """A function that raises, whatever it is given."""
    return Mock(side_effect=error)
