"""Ids that the server issues: a letter for the kind, and digits that say nothing."""

import hashlib
import re

DIGITS = 20
_FORM = re.compile(f"[a-z]-[0-9a-f]{{{DIGITS}}}")


def make_id(kind: str, *content: str, secret: bytes = b"") -> str:
    """The id of something: the same content gives the same id, and nobody can read it off.

    Args:
        kind: one letter: l, m, f, j or s.
        content: what tells it from others of its kind.
        secret: of this server, where the content could be guessed.

    Example:
        >>> make_id("l", "abc")
        'l-3619b2e9832d748d745e'
    """
    text = "\0".join(content).encode("utf-8", "surrogateescape")
    return f"{kind}-{hashlib.blake2b(text, key=secret, digest_size=DIGITS // 2).hexdigest()}"


def is_id(text: str, kind: str) -> bool:
    """Whether a text has the form of an id of that kind; only then is it worth a look.

    Example:
        >>> is_id("l-3619b2e9832d748d745e", "l"), is_id("../../etc/passwd", "l")
        (True, False)
    """
    return text[:1] == kind and _FORM.fullmatch(text) is not None
