"""The closed form of the robust Fisher against the paper's optimisation, on real tasks. Made for a GPU.

    python benchmarks/robust.py run --probe resnet34 --task dtd10 --out DIR [--shared DIR] [--epochs 40] [--seed 0]
    python benchmarks/robust.py both --probe resnet34 --out DIR                 # robust and direct on all tasks
    python benchmarks/robust_report.py DIR --json docs/measured/robust.json     # compares what lies there

`run` fits a head, measures the Fisher (direct and untied) of all images and labels at that head, and minimises the
variational loss from a start that knows nothing. Each run writes one file, and a file that is there is not made again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import RESNET, resnet_weights  # noqa: E402
from benchmarks.measure import make_parser  # noqa: E402
from experiments.collection import read_collection  # noqa: E402
from task2vec.embedding.batching import tensor_cores  # noqa: E402
from task2vec.embedding.single import (  # noqa: E402
    Job,
    draw_batches,
    fitted_prior,
    prepare_job,
    train_head,
)
from task2vec.fisher import NoisyNetwork, minimise  # noqa: E402
from task2vec.head import Head, fit_head  # noqa: E402
from task2vec.progress import silent  # noqa: E402

TASKS = (
    "clothing10",
    "dtd10",
    "cub_Icteridae",
    "cub_Piciformes",
    "flowers_Asterales",
    "flowers_Liliales",
    "dogs_herding",
    "dogs_toy",
)


def main() -> int:
    """Runs one part."""
    arguments = _parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part == "both":
        return both(arguments)
    kind = f"{arguments.head}-b{arguments.beta:g}-s{arguments.seed}"
    place = arguments.out / f"run-{arguments.probe}-{arguments.task}-{kind}.safetensors"
    if place.exists():
        return 0
    probe = load_probe(arguments)
    settings = t2v.EmbedSettings(
        beta=arguments.beta,
        seeds="all",
        seed=arguments.seed,
        variational=t2v.VariationalSettings(epochs=arguments.epochs, draws=arguments.draws, batch=arguments.batch),
    )
    steps = prepare_job(
        read_task(arguments), probe, settings=settings, device=arguments.device, batch_size=arguments.batch_size
    )
    with tensor_cores(steps.device):
        found = run(steps, arguments)
    save(place, found)
    print(place.name, {key: round(float(value), 4) for key, value in found.items() if np.ndim(value) == 0}, flush=True)
    return 0


def load_probe(arguments: argparse.Namespace) -> t2v.Probe:
    """One of the two probes at the wanted size."""
    if arguments.probe == RESNET:
        return t2v.load_probe(RESNET, weights=resnet_weights(arguments.shared), size=arguments.size)
    return t2v.load_probe(size=arguments.size)


def read_task(arguments: argparse.Namespace) -> t2v.Task:
    """A task by its name: a whole dataset, or a row of tasks.csv."""
    data = arguments.shared / "data"
    if (data / arguments.task / "images").exists():
        return t2v.read_folder(data / arguments.task / "images", name=arguments.task)
    return next(member.task for member in read_collection(data).members if member.task.name == arguments.task)


def run(steps: Job, arguments: argparse.Namespace) -> dict[str, object]:
    """Closed form and optimisation at one head: its own converged one, or the paper's that is trained along."""
    head, features, seconds = _fit(steps)
    training, beta = steps.settings.variational, steps.settings.beta / len(steps.task)
    weight, bias = (part.to(steps.device, steps.passes.dtype) for part in (head.weight, head.bias))
    if arguments.head == "joint":
        weight, bias = (part.to(steps.passes.dtype) for part in train_head(steps, features, silent))
    total = training.epochs * training.steps_per_epoch
    trace = Trace(training.steps_per_epoch)
    begin = time.perf_counter()
    found = minimise(
        NoisyNetwork(steps.passes.network, steps.passes.probe.layers),
        draw_batches(steps, total + 1),
        weight=weight,
        bias=bias,
        beta=beta,
        steps=total,
        steps_per_epoch=training.steps_per_epoch,
        generator=torch.Generator(steps.device).manual_seed(arguments.seed + 2),
        head_rate=training.head_rate if arguments.head == "joint" else 0.0,
        watch=trace.add,
    )
    seconds["variational"] = time.perf_counter() - begin
    if arguments.head == "joint":
        head = replace(head, weight=found.weight.double(), bias=found.bias.double())
    result = {f"seconds_{key}": value for key, value in seconds.items()}
    for method in ("robust", "direct"):
        begin = time.perf_counter()
        result[method] = fisher_at(steps, features, head, method)
        result[f"seconds_all_{method}"] = time.perf_counter() - begin
    begin = time.perf_counter()
    fisher_at(steps, features, head, "robust", images=400)
    result["seconds_robust"] = time.perf_counter() - begin
    result |= {"log_precision": found.log_precision.cpu(), "stderr": found.stderr.cpu(), "trace": trace.epochs().half()}
    result |= {"times": trace.times, "beta": beta, "loss": found.loss, "kl": found.kl, "drift": found.drift}
    prior = fitted_prior(result["robust"], steps.passes.probe.layers, beta=beta)
    closed = (result["robust"] + prior).log()
    result["closed"] = closed
    result["correlation"] = spearmanr(found.log_precision.cpu(), closed)[0]
    result["rms"] = (found.log_precision.cpu() + np.log(beta) - closed).square().mean().sqrt()
    return {
        key: value.float() if torch.is_tensor(value) and value.dtype == torch.float64 else value
        for key, value in result.items()
    }


def both(arguments: argparse.Namespace) -> int:
    """Robust and direct Fisher of every task of the shared folder, from one feature pass, as users get them."""
    probe = load_probe(arguments)
    found: dict[str, list] = {}
    for member in read_collection(arguments.shared / "data").members:
        task = member.task
        settings = t2v.EmbedSettings(beta=arguments.beta, seed=arguments.seed)
        steps = prepare_job(task, probe, settings=settings, device=arguments.device)
        with tensor_cores(steps.device):
            head, features, seconds = _fit(steps)
            row: dict[str, object] = {
                "dataset": member.dataset,
                "task": task.name,
                "error": head.cv_error,
                "images": len(task),
            }
            for method in ("robust", "direct"):
                begin = time.perf_counter()
                part = replace(steps, settings=replace(settings, method=method))
                estimate = part.fisher(features, head, silent)
                seconds[method] = time.perf_counter() - begin
                row |= {method: estimate.fisher.float().numpy(), f"{method}_stderr": estimate.stderr.float().numpy()}
        row |= {f"seconds_{key}": value for key, value in seconds.items()}
        for key, value in row.items():
            found.setdefault(key, []).append(value)
        print(task.name, {key: round(value, 2) for key, value in seconds.items()}, flush=True)
    save(arguments.out / f"both-{arguments.probe}.safetensors", {key: np.array(value) for key, value in found.items()})
    return 0


def fisher_at(steps: Job, features: torch.Tensor, head: Head, method: str, images: int | None = None) -> torch.Tensor:
    """The Fisher of every image and label at `head`, or of some that are drawn."""
    settings = replace(steps.settings, method=method)
    settings = settings if images is None else replace(settings, seeds="balanced", max_samples=images)
    steps = replace(steps, settings=settings)
    return steps.fisher(features, head, silent).fisher


class Trace:
    """Mean of L over every epoch, and the seconds at its end."""

    def __init__(self, steps_per_epoch: int, clock: Callable[[], float] = time.perf_counter):
        self.length, self.clock, self.rows, self.times = steps_per_epoch, clock, [], []
        self.begin = clock()

    def add(self, step: int, log_precision: torch.Tensor) -> None:
        """Takes in L after a step."""
        if step % self.length == 0:
            self.sum = torch.zeros_like(log_precision)
        self.sum = self.sum + log_precision
        if step % self.length == self.length - 1:
            self.rows.append((self.sum / self.length).cpu())
            self.times.append(self.clock() - self.begin)

    def epochs(self) -> torch.Tensor:
        """(epochs, filters)."""
        return torch.stack(self.rows)


def _fit(steps: Job) -> tuple[Head, torch.Tensor, dict[str, float]]:
    begin = time.perf_counter()
    features = steps.features(silent)
    middle = time.perf_counter()
    head = fit_head(features, steps.targets, classes=len(steps.task.classes))
    return head, features, {"features": middle - begin, "head": time.perf_counter() - middle}


def save(place: Path, found: dict[str, object]) -> None:
    """Numbers as tensors, words beside them: safetensors."""
    arrays = {key: np.asarray(value) for key, value in found.items()}
    words = {key: json.dumps(value.tolist()) for key, value in arrays.items() if value.dtype.kind == "U"}
    numbers = {key: np.array(value, order="C") for key, value in arrays.items() if value.dtype.kind != "U"}
    save_file(numbers, place, metadata=words)


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("part", choices=("run", "both"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--probe", default=RESNET)
    parser.add_argument("--task", default=TASKS[0])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--beta", type=float, default=1e-7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--head", choices=("fixed", "joint"), default="fixed")
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--batch-size", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
