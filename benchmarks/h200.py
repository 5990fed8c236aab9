"""One GPU, by hand: seconds of whole embeddings, and images per second of the engines.

    python benchmarks/h200.py [--weights FILE] [--out FILE]

The first task is what the old public code takes 9 to 14 s for: 390 decoded images of 13 classes, ResNet-34 at 224 px.
Then, with the default probe, a folder of 600 JPEG files from reading to the end, and 12 tasks of 100 images at once.
All pictures are painted, so nothing but this repository, torch and timm is needed; without --weights the ResNet is
random, which does not change the time.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import timm  # noqa: E402
import torch  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks import stages  # noqa: E402
from benchmarks.bare_pass import passes  # noqa: E402
from benchmarks.measure import interleave, make_parser, show_table, timed, wall_clock, write_json  # noqa: E402
from benchmarks.memory import paint_task  # noqa: E402
from task2vec.fisher import PerSampleFisher  # noqa: E402
from task2vec.probe import Preprocess  # noqa: E402
from task2vec.probe.probe import make_probe  # noqa: E402

IMAGES, CLASSES, SIZE = 390, 13, 224
FILES, FILE_CLASSES, FILE_SIZE = 600, 30, 160
TASKS, TASK_IMAGES, TASK_CLASSES = 12, 100, 10
# Wanted seconds: of the best embedding of decoded images, of a folder of files, and of each of many tasks.
TARGETS = {"decoded": 0.12, "folder": 0.6, "many": 0.06}
REPEATS = 7
UNMEASURED = 8  # the first ones prepare kernels, and record passes


def main() -> int:
    """Prints both tables and writes them; 1 if the embedding took too long."""
    arguments = _parse()
    device = torch.device(arguments.device)
    clock = wall_clock(device.type)
    probe = _load(arguments.weights)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device.type == 'cuda' else 'processor'}")
    embeddings = [embedding_seconds(probe, method, device, clock) for method in ("robust", "direct")]
    seconds = {"decoded": min(row["total"] for row in embeddings), **file_seconds(device, clock)}
    rates = [
        row
        for rated_probe in (probe, t2v.load_probe())
        for is_tf32, dtype in ((True, torch.float32), (False, torch.float32), (True, torch.bfloat16))
        for batch in arguments.batches
        for row in [images_per_second(rated_probe, batch, is_tf32, dtype, device, clock)]
    ]
    errors = arithmetic_errors(probe, device)
    results = {"torch": torch.__version__, "embedding": embeddings, "seconds": seconds, "images_per_second": rates}
    results["errors"] = errors
    write_json(arguments.out, results)
    for name, target in TARGETS.items():
        verdict = "met" if seconds[name] <= target else "MISSED"
        print(f"{name}: {seconds[name]:.3f} s, wanted at most {target} s: {verdict}")
    return int(any(seconds[name] > target for name, target in TARGETS.items()))


def _load(weights: Path | None) -> t2v.Probe:
    if weights is not None:
        return t2v.load_probe("resnet34", weights=weights, size=SIZE)
    torch.manual_seed(0)
    network = timm.create_model("resnet34", pretrained=False).eval()
    return make_probe("resnet34", network, ("fc",), Preprocess(size=(SIZE, SIZE), resize=SIZE), source="random")


def _allow_tf32(is_allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    torch.backends.cudnn.allow_tf32 = is_allowed


def embedding_seconds(
    probe: t2v.Probe, method: str, device: torch.device, clock: Callable[[], float]
) -> dict[str, object]:
    """Median seconds of the stages of one embedding, after those that bring pixels to the device and record passes."""
    settings = t2v.EmbedSettings(method=method)
    run = stages.start(paint_task(IMAGES, size=SIZE, classes=CLASSES), probe, settings=settings, device=str(device))
    rows = []
    for _ in range(REPEATS + UNMEASURED):
        begin = clock()
        fitted = stages.fit(run, clock)
        estimate, fisher_seconds = stages.estimate(fitted, settings, clock)
        row = {"features": fitted.feature_seconds, "head": fitted.head_seconds, "fisher": fisher_seconds}
        rows.append({**row, "total": clock() - begin})
    medians = {name: statistics.median(row[name] for row in rows[UNMEASURED:]) for name in rows[0]}
    medians["second time"] = rows[1]["total"]
    print(f"\n{IMAGES} images at {SIZE} px, method {method}, {estimate.terms} pairs")
    show_table(["stage", "seconds"], list(medians.items()))
    return {"method": method, "pairs": estimate.terms, **medians}


def file_seconds(device: torch.device, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of a folder of JPEG files, read and embedded, and of each of many tasks that are read already."""
    probe, rows = t2v.load_probe(), []
    with tempfile.TemporaryDirectory() as root:
        _write_files(Path(root, "one"), FILES, FILE_CLASSES)
        for number in range(TASKS):
            _write_files(Path(root, "many", str(number)), TASK_IMAGES, TASK_CLASSES, start=number * TASK_IMAGES)
        for _ in range(REPEATS + UNMEASURED):
            task, read = timed(lambda: t2v.read_folder(Path(root, "one")), clock)
            _, embedded = timed(lambda: t2v.embed(task, probe, device=str(device)), clock)  # noqa: B023
            tasks = [t2v.read_folder(folder) for folder in sorted(Path(root, "many").iterdir())]
            _, many = timed(lambda: list(t2v.embed_many(tasks, probe, device=str(device))), clock)  # noqa: B023
            rows.append({"folder": read + embedded, "read": read, "many": many / TASKS})
    medians = {name: statistics.median(row[name] for row in rows[UNMEASURED:]) for name in rows[0]}
    print(f"\n{FILES} JPEG files; {TASKS} tasks of {TASK_IMAGES} images, {probe.name} at {probe.size[0]} px")
    show_table(["what", "seconds"], list(medians.items()))
    return medians


def _write_files(folder: Path, count: int, classes: int, *, start: int = 0) -> None:
    """Painted pictures as JPEG files, in a folder for every class."""
    images = paint_task(start + count, size=FILE_SIZE, classes=classes).images
    for number in range(start, start + count):
        path = folder / f"class {number % classes}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        images.load(number).save(path, quality=90)


def images_per_second(
    probe: t2v.Probe, batch: int, is_tf32: bool, dtype: torch.dtype, device: torch.device, clock: Callable[[], float]
) -> dict[str, object]:
    """Images per second of the forward pass, the bare forward and input-gradient pass, and the per-sample Fisher."""
    _allow_tf32(is_tf32)
    network = probe.prepare(device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, SIZE, SIZE, generator=generator).to(device, dtype)
    images = images.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else images
    seed = torch.randn(batch, probe.feature_dim, generator=generator).to(device, dtype)
    forward = torch.inference_mode()(network.module)
    works = {"forward": lambda: forward(images), **passes(probe, images, seed)}
    several = {name: (lambda work=work: [work() for _ in range(5)]) for name, work in works.items()}
    seconds = interleave(several, rounds=REPEATS, clock=clock)
    rates = {name: 5 * batch / statistics.median(taken) for name, taken in seconds.items()}
    kind = str(dtype).removeprefix("torch.") + (" TF32" if is_tf32 and dtype == torch.float32 else "")
    print(f"\nimages per second, {probe.name}, {kind}, batches of {batch}")
    show_table(["pass", "images/s", "times bare"], [(n, rate, rates["bare"] / rate) for n, rate in rates.items()])
    return {"probe": probe.name, "dtype": kind, "batch": batch, **rates}


def arithmetic_errors(probe: t2v.Probe, device: torch.device) -> list[dict[str, object]]:
    """How far single filters move from float64 in each arithmetic, on the same 32 images and seeds."""
    run = stages.start(
        paint_task(32, size=SIZE, classes=CLASSES),
        probe,
        settings=t2v.EmbedSettings(method="direct"),
        device=str(device),
    )
    _, pixels = next(run.passes.pixels.batches(range(32), 32))
    seeds = torch.randn(1, 32, probe.feature_dim, generator=torch.Generator().manual_seed(0)).to(device)

    def rows(dtype: torch.dtype) -> torch.Tensor:
        engine = PerSampleFisher(probe.prepare(device=device, dtype=dtype), probe.layers)
        return engine.rows(probe.preprocess.normalise(pixels, dtype), seeds.to(dtype)).double().mean(0)

    exact = rows(torch.float64)
    errors = []
    kinds = (("float32", torch.float32, False), ("TF32", torch.float32, True), ("bfloat16", torch.bfloat16, True))
    for name, dtype, is_tf32 in kinds:
        _allow_tf32(is_tf32)
        moved = ((rows(dtype) - exact).abs() / exact)[exact > 0]
        errors.append({"arithmetic": name, "median": float(moved.median()), "99 %": float(moved.quantile(0.99))})
    print("\nrelative change of a filter against float64")
    show_table(list(errors[0]), [tuple(row.values()) for row in errors])
    return errors


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--weights", type=Path, help="ResNet-34 weights as safetensors; random if not given")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--device", default="cuda", help="cpu to see that the script runs")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256], help="batch sizes of the passes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
