"""(x) Training an expert against a bare forward-backward loop, and its feature pass against a bare forward.

    python benchmarks/expert_speed.py [--device cuda] [--size 112] [--quick] [--out FILE]

The same network (ResNet-34, random weights: speed does not depend on them) and batches of the same size.
The bare loops see one batch on the device again and again: no images are drawn, cropped or normalised, no weight moves.
All ways take turns, and the median of the rounds is compared.
"""

import statistics
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import (  # noqa: E402
    SHARED,
    Plan,
    Verdict,
    describe_machine,
    make_parser,
    show_table,
    wall_clock,
    write_json,
)
from task2vec.embedding.batching import tensor_cores  # noqa: E402
from task2vec.experts.recipes import Recipe  # noqa: E402
from task2vec.experts.train import (  # noqa: E402
    Training,
    compute_features,
    compute_loss,
    prepare_images,
)
from task2vec.probe import Preprocess  # noqa: E402
from task2vec.probe.probe import make_probe  # noqa: E402
from task2vec.progress import silent  # noqa: E402

CLASSES = 10
TRAINING, FEATURES = 0.8, 0.7


def make_lessons(device: torch.device, images: int, size: int):
    """A task of noise and the network."""
    rng = np.random.default_rng(0)
    pictures = [
        Image.fromarray(rng.integers(0, 256, (size * 8 // 7, size * 8 // 7, 3), dtype=np.uint8)) for _ in range(images)
    ]
    task = t2v.from_dataset([(picture, number % CLASSES) for number, picture in enumerate(pictures)], name="noise")
    torch.manual_seed(0)
    module = torchvision.models.resnet34(weights=None).eval()
    base = make_probe("resnet34", module, ("fc",), Preprocess(size=(size, size), resize=size * 8 // 7), source="random")
    lessons = prepare_images(task.canonical(), base, device=device)
    for _ in lessons.pixels.batches(range(images), 256):
        pass
    return base, lessons


def bare_training(training, batch: int, steps: int, size: int) -> float:
    """Images per second of forward and backward passes of the same network, in the same precision."""
    learner, device = training.learner, training.device
    images = torch.randn(batch, 3, size, size, device=device)
    if device.type == "cuda":
        images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.arange(batch, device=device) % CLASSES
    begun = _now(device)
    for _ in range(steps):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = learner(images)
        loss, _ = compute_loss(logits.float(), targets)
        learner.zero_grad()
        loss.backward()
    return steps * batch / (_now(device) - begun)


@torch.no_grad()
def bare_features(network, device: torch.device, batch: int, images: int, size: int) -> float:
    """Images per second of forward passes alone."""
    network.eval()
    pixels = torch.randn(batch, 3, size, size, device=device)
    if device.type == "cuda":
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    begun = _now(device)
    for _ in range(images // batch):
        network(pixels)
    return images // batch * batch / (_now(device) - begun)


def measure(plan: Plan, *, size: int = 112) -> tuple[dict[str, object], list[Verdict]]:
    """Images per second of all ways."""
    device = torch.device(plan.device)
    is_gpu = device.type == "cuda"
    images, batch = (4096, 128) if is_gpu else (16, 8)
    draws, rounds = (10_000 if is_gpu else 16), (2 if plan.is_quick else 5)
    base, lessons = make_lessons(device, images, size)
    recipe = Recipe("speed", epochs=1, draws=draws, batch=batch)
    training = Training(base, lessons, recipe, seed=0, classes=CLASSES)
    found: dict[str, list[float]] = {"training": [], "bare training": [], "features": [], "bare features": []}
    large = 512 if is_gpu else 8
    for number in range(rounds + 1):
        with tensor_cores(device):
            training.step, before = 0, len(training.metrics)
            training.learner.train()
            training.run()
            found["training"].append(training.metrics[before].images_per_second)
            found["bare training"].append(bare_training(training, batch, recipe.steps, size))
            begun = _now(device)
            compute_features(training.learner.network, lessons, silent, batch=large)
            found["features"].append(images / (_now(device) - begun))
            found["bare features"].append(bare_features(training.learner.network, device, large, images, size))
        if number == 0:
            found = {way: [] for way in found}  # warmed up
    rates = {way: statistics.median(each) for way, each in found.items()}
    show_table(["way", "images per second", "of the bare loop"], [
        (way, rate, rate / rates[way if way.startswith("bare") else f"bare {way}"]) for way, rate in rates.items()
    ])  # fmt: skip
    what = f"(x) resnet34, {size} px, {device.type}:"
    return {"expert_speed": {"size": size, "images per second": rates}}, [
        Verdict(f"{what} training / bare loop", rates["training"] / rates["bare training"], TRAINING, is_at_least=True),
        Verdict(
            f"{what} features / bare forward", rates["features"] / rates["bare features"], FEATURES, is_at_least=True
        ),
    ]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    plan = Plan(SHARED, chosen.quick, wall_clock(chosen.device), chosen.device)
    found, verdicts = measure(plan, size=chosen.size)
    for verdict in verdicts:
        print(verdict)
    write_json(chosen.out, {"machine": describe_machine(), **found}, indent=1)
