"""Ray, joined or started: quietly, on loopback if it is ours, and with words where it cannot be had."""

import importlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from task2vec.errors import MissingExtraError, ResourceError, UsageError

# Read by Ray when it is imported or started: it tells nobody of its use, leaves the choice of a device to us, and
# prints nothing among our results, such as that a worker died.
_MANNERS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
# A Ray of our own speaks to itself, on loopback alone, as it does on other systems than Linux.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray itself would try for minutes.
_PATIENCE = 10.0
# On a machine that is busy, Ray gives up on the processes that it starts before they are up.
_TRIES = 3


def import_ray(*, is_alone: bool = True) -> ModuleType:
    """Ray, if it is installed."""
    for name, value in (_MANNERS | (_ALONE if is_alone else {})).items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "engine 'ray' needs Ray, which is not installed here. Install it: pip install 'task2vec[ray]'; or use "
            "engine='pool' (--engine pool), the processes of this machine."
        ) from error


def share_cards(cards: float, workers: int, wanted: float | None) -> float:
    """The GPUs of each worker: as wanted if there are so many, else an even share, so that all find a place.

    Example:
        >>> share_cards(8, 8, None), share_cards(2, 3, None), share_cards(0, 4, None)
        (1.0, 0.5, 0)
    """
    if wanted is None:
        return 1 / math.ceil(workers / cards) if cards else 0
    if wanted * workers > cards:
        raise UsageError(
            f"{workers} workers with gpus={wanted:g} each need {wanted * workers:g} GPUs, and Ray has {cards:g}: some "
            "would wait for ever. Ask for fewer workers (--jobs) or a smaller share."
        )
    return wanted


def connect(ray: ModuleType, address: str | None, *, cores: int | None) -> bool:
    """Joins the cluster at an address, or starts Ray on this machine; whether it was started."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:  # and not the one that somebody else may have started here
        options |= {"address": "local", "include_dashboard": False, "num_cpus": max(cores or 0, os.cpu_count() or 1)}
    else:
        options["address"] = address
    for tries_left in reversed(range(_TRIES if address is None else 1)):
        try:
            _knock(address)
            with _keep_handler(signal.SIGTERM):
                ray.init(**options)
            break
        except Exception as error:
            if tries_left:
                ray.shutdown()
                continue
            raise ResourceError(_word_missing(address, error)) from error
    return address is None


def _word_missing(address: str | None, error: Exception) -> str:
    """What to say where there is no Ray."""
    if address is None:
        return f"Ray cannot be started here ({shorten(error)}), so nobody would do the work. Use --engine pool instead."
    return (
        f"Ray cannot be reached at '{address}' ({shorten(error)}), so nobody would do the work. Start a cluster with "
        "`ray start --head`; if it asks for a token, set RAY_AUTH_MODE=token. Or leave out --address."
    )


@contextmanager
def _keep_handler(number: int) -> Iterator[None]:
    """What a signal does after the block is what it did before: Ray would have it print pages of addresses."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(number, before)


def _knock(address: str | None) -> None:
    """Raises `OSError` if there is nobody at HOST:PORT or ray://HOST:PORT."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


def shorten(error: Exception) -> str:
    """What an error of Ray says in one line; the last one of a traceback."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1] if "Traceback" in str(error) else f"{type(error).__name__}: {lines[0]}"
