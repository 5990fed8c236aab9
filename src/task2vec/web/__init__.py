"""The library in a browser: a page, and the JSON API behind it. Nothing is imported before it is used."""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.web.app import make_app
    from task2vec.web.server import check_extra, format_address, run, take_port
    from task2vec.web.settings import Limits, ServeSettings

__getattr__ = lazy_names(__name__)
