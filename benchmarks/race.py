"""The variational Fisher against the first public code's recipe, in one run: who settles first, and where?

    python benchmarks/race.py --task dtd10 [--probe resnet34] [--epochs 30] [--json docs/measured/race.json]

All start with the images decoded and do the whole embedding: features, two epochs of the head alone, then head and
noise together. After every epoch the race notes the seconds, the drift (root mean square change of L between the means
of two epochs), and how far the epoch's mean is from a reference, the mean of L over the last half of a longer run of
ours with another seed. The drift alone would not do: where the gradient is weak, L moves little wherever it is. A
recipe is said to settle when its drift is first below the limit of `task2vec embed`, which also asks for more.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import torch  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks import old_variational  # noqa: E402
from benchmarks.material import RESNET  # noqa: E402
from benchmarks.measure import show_table  # noqa: E402
from benchmarks.robust import Trace, load_probe, read_task  # noqa: E402
from task2vec.embedding.batching import tensor_cores  # noqa: E402
from task2vec.embedding.single import (  # noqa: E402
    Job,
    prepare_job,
)
from task2vec.embedding.variational import MOST_DRIFT, draw_batches, train_head  # noqa: E402
from task2vec.fisher import NoisyNetwork, minimise  # noqa: E402
from task2vec.progress import silent  # noqa: E402

Row = dict[str, float]


def main() -> int:
    """Runs the race, prints its course and writes it."""
    arguments = _parse()
    variational = t2v.VariationalSettings(draws=arguments.draws, batch=arguments.batch)
    settings = t2v.EmbedSettings(beta=arguments.beta, seed=arguments.seed, variational=variational)
    probe = load_probe(arguments)
    steps = prepare_job(read_task(arguments), probe, settings=settings, device=arguments.device)
    plain = probe.prepare(device=steps.pixels.device, dtype=steps.passes.dtype, fold=False, flip=False)
    runners = {
        "old": (replace(steps, network=plain), arguments.epochs),
        "curvature": (steps, arguments.our_epochs),
    }
    found: dict[str, list[Row]] = {}
    with tensor_cores(steps.pixels.device):
        for name, (those, _) in runners.items():  # decodes the images, and lets the libraries choose their kernels
            run(name, those, 10, seed=8)
        total = arguments.reference_epochs * variational.steps_per_epoch
        rows = run("curvature", steps, total, seed=9).epochs()
        reference = rows[len(rows) // 2 :].mean(0)
        for name, (those, epochs) in runners.items():
            course = run(name, those, epochs * variational.steps_per_epoch, seed=0)
            found[name] = tell(course, reference)
            print(f"\n{name}: settled after {settled(found[name])} s (drift at most {MOST_DRIFT})")
            show_table(list(found[name][0]), [tuple(row.values()) for row in found[name]])
            sys.stdout.flush()
    if arguments.json:
        words = {key: value for key, value in vars(arguments).items() if isinstance(value, int | float | str)}
        place = {"device": torch.cuda.get_device_name() if steps.pixels.device.type == "cuda" else "cpu"}
        story = {"settings": words | place, "settled": {name: settled(rows) for name, rows in found.items()}}
        arguments.json.write_text(json.dumps(story | {"epochs": found}, indent=1) + "\n", encoding="utf-8")
    return 0


def run(name: str, steps: Job, total: int, *, seed: int) -> Trace:
    """The course of one whole embedding of `total` noisy steps."""
    settings = steps.settings.variational
    steps = replace(steps, settings=replace(steps.settings, seed=steps.settings.seed + 100 * seed))
    device = steps.pixels.device
    # A processor that others use too is asked for its own seconds.
    trace = Trace(settings.steps_per_epoch, time.process_time if device.type == "cpu" else time.perf_counter)
    weight, bias = (part.to(steps.passes.dtype) for part in train_head(steps, steps.features(silent), silent))
    generator = torch.Generator(device).manual_seed(seed + 2)
    common = {"weight": weight, "bias": bias, "beta": steps.settings.beta / len(steps.task), "steps": total}
    common |= {"head_rate": settings.head_rate, "generator": generator, "watch": trace.add}
    batches = draw_batches(steps, total + 1)
    if name == "old":
        old_variational.train(steps.passes.network, steps.passes.probe.layers, batches, **common)
    else:
        network = NoisyNetwork(steps.passes.network, steps.passes.probe.layers)
        minimise(network, batches, steps_per_epoch=settings.steps_per_epoch, **common)
    return trace


def tell(course: Trace, reference: torch.Tensor) -> list[Row]:
    """A row for every epoch but the first, which has no drift."""
    rows = course.epochs()
    return [
        {
            "epochs": number + 1,
            "seconds": round(course.times[number], 2),
            "drift": float((rows[number] - rows[number - 1]).square().mean().sqrt()),
            "off": float((rows[number] - reference).square().mean().sqrt()),
            "rank": float(spearmanr(rows[number], reference)[0]),
        }
        for number in range(1, len(rows))
    ]


def settled(rows: list[Row]) -> float | None:
    """Seconds until the drift was small for the first time; None if it never was."""
    return next((row["seconds"] for row in rows if row["drift"] <= MOST_DRIFT), None)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=_ROOT.parent / "shared", help="folder of real images and weights"
    )
    parser.add_argument("--probe", default=RESNET)
    parser.add_argument("--task", default="dtd10")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=30, help="of the old recipe")
    parser.add_argument("--our-epochs", type=int, default=6, help="of ours with the curvature")
    parser.add_argument("--reference-epochs", type=int, default=12)
    parser.add_argument("--draws", type=int, default=10_000, help="images per epoch")
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--beta", type=float, default=1e-7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
