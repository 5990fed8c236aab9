"""(m) 256 yes-no questions about the same 2,000 real images: `embed_many` against one task at a time, and the limit.

    python benchmarks/many_tasks.py [--device cuda] [--probe resnet34] [--size 128] [--quick] [--out FILE]

The questions are "is it this species, breed, family, order or group?" about birds, flowers and dogs. One run measures
all of `embed_many`, and before and after it some of the tasks alone: by `embed`, by `embed` with the features of all
images known (a cache of features), and the bare input-gradient passes that any method needs, with the forward pass of
an image shared by all seeds. On a GPU `embed_many` is the median of three warm runs; the first, which also compiles
kernels and records passes, has a row of its own. On a CPU the whole runs at 64 pixels to end within minutes.
"""

import csv
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.bare_pass import bare_gradients  # noqa: E402
from benchmarks.material import RESNET, SIZE, resnet_weights  # noqa: E402
from benchmarks.measure import (  # noqa: E402
    Plan,
    Verdict,
    choose_clock,
    describe_machine,
    make_parser,
    show_table,
    timed,
)
from task2vec.embedding.batching import tensor_cores  # noqa: E402
from task2vec.embedding.single import prepare_job  # noqa: E402
from task2vec.progress import silent  # noqa: E402

TASKS, PAIRS = 256, 400
# Dataset: classes, images of each, and the columns of its taxonomy that are asked about.
DATASETS = {
    "cub200": (100, 10, ("family", "order")),
    "flowers102": (60, 10, ("family", "order")),
    "dogs": (40, 10, ("breed_group",)),
}
LEAST = 10
ALONE, CACHED, ERROR = 6.0, 1.8, 1e-5
# On a GPU the host has a share: decoding, resizing, folds and files.
LIMIT = {"cpu": 1.3, "cuda": 2.5}
SEEDS = 16  # of one batch in the bare passes: more would change nothing
BATCH = {"cpu": 16, "cuda": 256}


def measure(
    plan: Plan, *, name: str | None = None, size: int | None = None, part: int = 1, alone: int = 4
) -> tuple[dict[str, object], list[Verdict]]:
    """Seconds per task of all ways, their ratios, and how far the numbers are apart."""
    settings = t2v.EmbedSettings(max_samples=PAIRS // part)
    side = size or (64 if plan.device == "cpu" else SIZE)
    weights = resnet_weights(plan.shared) if name == RESNET else None
    probe = t2v.load_probe(name or "tf_efficientnet_lite0", weights=weights, size=side)
    tasks = read_questions(plan, part)
    print(f"\n(m) {len(tasks)} tasks on {len(tasks[0])} images, {probe.name} at {side} px, {plan.device}", flush=True)
    chosen = np.linspace(0, len(tasks) - 1, 2 if plan.is_quick else alone).round().astype(int).tolist()
    batch = BATCH[plan.device]
    common = {"device": plan.device, "batch_size": batch, "settings": settings}
    is_warm = plan.device != "cpu"  # a CPU has nothing to prepare
    _, first = timed(partial(embed_all, tasks if is_warm else tasks[:2], probe, **common), plan.clock)
    before = measure_alone(tasks, chosen, probe, settings, plan)
    if is_warm:
        torch.cuda.reset_peak_memory_stats()
    runs = []
    for _ in range(3 if is_warm else 1):
        fresh = read_questions(plan, part)  # as whoever has just read them: their images are still decoded
        runs.append(timed(partial(embed_all, fresh, probe, **common), plan.clock))
    found, seconds = runs[0][0], statistics.median(seconds for _, seconds in runs)
    after = measure_alone(tasks, chosen, probe, settings, plan)
    many = {result.number: result.embedding for result in found}
    errors = [far_apart(one, many[number]) for number, one in zip(chosen, before["embeddings"], strict=True)]
    taken = {kind: statistics.fmean([*before[kind], *after[kind]]) for kind in ("alone", "cached", "limit")}
    taken["many"] = seconds / len(tasks)
    if is_warm:
        taken["first"] = first / len(tasks)
    ratios = {kind: taken[kind] / taken["many"] for kind in ("alone", "cached")}
    ratios["limit"] = taken["many"] / taken["limit"]
    rows = [(kind, taken[kind], taken[kind] / taken["many"]) for kind in taken]
    show_table(["way", "s per task", "times embed_many"], rows)
    print(f"largest relative difference (L1 over the filters): {max(errors):.1e}", flush=True)
    what = f"(m) {probe.name}, {plan.device}:"
    verdicts = [
        Verdict(f"{what} one by one / embed_many", ratios["alone"], ALONE, is_at_least=True),
        Verdict(f"{what} one by one with known features / embed_many", ratios["cached"], CACHED, is_at_least=True),
        Verdict(f"{what} embed_many / bare input gradients", ratios["limit"], LIMIT[plan.device], is_at_least=False),
        Verdict(f"{what} largest difference / 1e-5", max(errors) / ERROR, 1.0, is_at_least=False),
    ]
    story = {"probe": probe.name, "size": side, "device": plan.device, "tasks": len(tasks), "images": len(tasks[0])}
    story |= {"seconds per task": taken, "ratios": ratios, "largest difference": max(errors)}
    if plan.device != "cpu":
        story["gigabytes on the device"] = torch.cuda.max_memory_allocated() / 2**30
    return {"many_tasks": [story]}, verdicts


def embed_all(*given: Any, **options: Any) -> list[t2v.TaskResult]:
    """All results of `embed_many`."""
    return list(t2v.embed_many(*given, **options))


def read_questions(plan: Plan, part: int = 1) -> list[t2v.Task]:
    """The questions as tasks, all on the same images."""
    rows: list[tuple[str, set[str]]] = []
    for dataset, (classes, images, levels) in DATASETS.items():
        folder = plan.shared / "data" / dataset
        with (folder / "taxonomy.csv").open(encoding="utf-8", newline="") as file:
            kinds = [row for row in csv.DictReader(file) if len(list_images(folder, row["class_dir"])) >= images]
        step = len(kinds) / classes * part
        for kind in (kinds[int(number * step)] for number in range(classes // part)):
            labels = {f"{dataset} {kind['class_dir']}", *(f"{dataset} {kind[level]}" for level in levels)}
            rows += [(str(path), labels) for path in list_images(folder, kind["class_dir"])[:images]]
    rows = rows[:: len(rows) // 60] if plan.is_quick else rows
    counts = Counter(label for _, labels in rows for label in labels)
    least = 2 if plan.is_quick else LEAST
    asked = [label for label, count in counts.most_common() if least <= count <= len(rows) - least]
    asked = asked[: 6 if plan.is_quick else TASKS // part]
    with tempfile.TemporaryDirectory() as place:
        table = Path(place, "questions.csv")
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", *asked])
            writer.writerows([path, *(int(label in labels) for label in asked)] for path, labels in rows)
        return list(t2v.read_table(table, root=plan.shared / "data", name="questions").one_vs_rest())


def list_images(folder: Path, kind: str) -> list[Path]:
    """The images of a class, in order."""
    return sorted((folder / "images" / kind).glob("*.jpg"))


def measure_alone(
    tasks: list[t2v.Task], chosen: list[int], probe: t2v.Probe, settings: t2v.EmbedSettings, plan: Plan
) -> dict[str, list]:
    """Seconds of the chosen tasks by `embed`, by `embed` with known features, and of the bare passes they need."""
    found: dict[str, list] = {"alone": [], "cached": [], "limit": [], "embeddings": []}
    for number in chosen:
        one = {"device": plan.device, "batch_size": BATCH[plan.device], "settings": settings}
        embedding, seconds = timed(lambda: t2v.embed(tasks[number], probe, **one), plan.clock)  # noqa: B023
        found["alone"].append(seconds)
        found["embeddings"].append(embedding)
        steps = prepare_job(tasks[number], probe, **one)
        with tensor_cores(steps.device):
            features = steps.features(silent)
        again = lambda: steps.embed(features, silent)  # noqa: B023, E731
        found["cached"].append(timed(again, plan.clock)[1])
        pairs = embedding.provenance["counts"]["backpropagated"]
        found["limit"].append(pairs * bare_seconds(steps.passes.network, probe, plan))
    return found


def bare_seconds(network, probe: t2v.Probe, plan: Plan) -> float:
    """Seconds of one input-gradient pass of one image, the forward pass not counted: it is shared by all seeds."""
    batch, device = BATCH[plan.device], torch.device(plan.device)
    images = torch.randn(batch, 3, *probe.size, device=device)
    if device.type == "cuda":
        images = images.contiguous(memory_format=torch.channels_last)
    seeds = torch.randn(SEEDS, batch, probe.feature_dim, device=device)
    with tensor_cores(device):
        back: Callable = bare_gradients(network, images)
        back(seeds[0], True)
        _, seconds = timed(lambda: [back(seed, True) for seed in seeds], plan.clock)
    return seconds / SEEDS / batch


def far_apart(one: t2v.Embedding, other: t2v.Embedding | None) -> float:
    """The relative difference of two Fisher vectors, summed over the filters."""
    return float(np.abs(one.fisher - other.fisher).sum() / one.fisher.sum()) if other is not None else float("inf")


def main() -> int:
    """Measures one probe and adds it to the file."""
    parser = make_parser(__doc__, has_shared=True, has_clock=True)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--probe", help="the default probe, or resnet34")
    parser.add_argument("--size", type=int, help="side of the images; 64 on a CPU, 128 on a GPU")
    parser.add_argument(
        "--part", type=int, default=1, help="divides tasks, images and pairs: 4 takes a sixteenth of the time"
    )
    parser.add_argument("--alone", type=int, default=4, help="how many of the tasks are measured alone")
    parser.add_argument("--quick", action="store_true", help="a few tasks, to see that it runs")
    parser.add_argument("--out", type=Path, help="JSON to add the figures to")
    arguments = parser.parse_args()
    clock_name, clock = choose_clock(arguments)
    plan = Plan(arguments.shared, arguments.quick, clock, arguments.device)
    found, verdicts = measure(
        plan, name=arguments.probe, size=arguments.size, part=arguments.part, alone=arguments.alone
    )
    for verdict in verdicts:
        print(f"  {verdict}", flush=True)
    if arguments.out:
        kept = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else []
        met = [verdict.to_dict() for verdict in verdicts]
        (story,) = found["many_tasks"]
        own = ("probe", "size", "device", "tasks")
        cores = describe_machine()["cores"]
        kept = [one for one in kept if any(one[key] != story[key] for key in own) or one["machine"]["cores"] != cores]
        machine = describe_machine() | {"clock": clock_name}
        arguments.out.write_text(json.dumps([*kept, {**story, "machine": machine, "verdicts": met}], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
