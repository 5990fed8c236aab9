"""How things are timed and shown here: side by side in one run, because only ratios of one run mean anything."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch

Result = TypeVar("Result")
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
MEASURED = ROOT / "docs" / "measured"


@dataclass(frozen=True)
class Plan:
    """What all measurements of a run have in common.

    Attributes:
        shared: the folder with the real images and weights.
        is_quick: measure a small part, to see that everything runs; the numbers then mean little.
        clock: seconds, of the wall or of the processor.
        device: where distances and embeddings run.
        errors: measured errors of both algorithms, for `time_to_error`.
        old_draws: how many of its draws the old algorithm really makes; the rest is extrapolated.
    """

    shared: Path
    is_quick: bool = False
    clock: Callable[[], float] = time.perf_counter
    device: str = "cpu"
    old_draws: int = 10_000
    errors: Path = Path("docs/measured/errors.json")


@dataclass(frozen=True)
class Verdict:
    """One ratio that was promised: what it is, what it should be, and what it was."""

    what: str
    ratio: float
    target: float
    is_at_least: bool

    @property
    def is_met(self) -> bool:
        """Whether the ratio is on the right side of the target."""
        return bool(self.ratio >= self.target if self.is_at_least else self.ratio <= self.target)

    def __str__(self) -> str:
        """The verdict in one line."""
        sign = ">=" if self.is_at_least else "<="
        return f"{'met   ' if self.is_met else 'MISSED'}  {self.ratio:8.2f}  (wanted {sign} {self.target})  {self.what}"

    def to_dict(self) -> dict[str, object]:
        """The verdict as JSON has it."""
        return {**asdict(self), "is_met": self.is_met}


def make_parser(text: str | None, *, has_shared: bool = False, has_clock: bool = False) -> argparse.ArgumentParser:
    """A parser with the text of a benchmark as its help, and the options that several of them have.

    Args:
        text: the docstring of the benchmark.
        has_shared: with --shared, the folder of real images and weights.
        has_clock: with --processor-time, see `choose_clock`.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if has_shared:
        parser.add_argument("--shared", type=Path, default=SHARED, help="folder of real images and weights")
    if has_clock:
        about = "one thread, its own seconds: for a busy machine"
        parser.add_argument("--processor-time", action="store_true", help=about)
    return parser


def choose_clock(arguments: argparse.Namespace) -> tuple[str, Callable[[], float]]:
    """The clock that is wanted, by --processor-time and --device, after its name."""
    if arguments.processor_time:
        return "processor", use_processor_time()
    return "wall", wall_clock(arguments.device)


def write_json(path: Path | None, figures: object, *, indent: int = 2) -> None:
    """Writes the figures, if there is a place for them."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=indent) + "\n", encoding="utf-8")
        print(f"written to {path}", flush=True)


def wall_clock(device: str) -> Callable[[], float]:
    """The wall's seconds; on a GPU read when it has finished what it was given, with TF32 for whoever is measured."""
    if device == "cpu":
        return time.perf_counter
    torch.set_float32_matmul_precision("high")

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def use_processor_time() -> Callable[[], float]:
    """The clock for a machine that others use too: one thread, and the seconds that this process really computed."""
    torch.set_num_threads(1)
    return time.process_time


def timed(work: Callable[[], Result], clock: Callable[[], float]) -> tuple[Result, float]:
    """What `work` returns, and the seconds it took."""
    start = clock()
    result = work()
    return result, clock() - start


def interleave(
    works: dict[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of every work in every round, one after the other in each, after one unmeasured round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name, work in works.items():
            _, taken = timed(work, clock)
            if round_ > 0:
                seconds[name].append(taken)
    return seconds


def ratio(seconds: Sequence[float], other: Sequence[float]) -> float:
    """Median over the rounds of `seconds` / `other`: a slow minute of the machine slows both and drops out."""
    return statistics.median(a / b for a, b in zip(seconds, other, strict=True))


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints `rows` in aligned columns under `header`."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    for row in [list(header), ["-" * width for width in widths], *cells]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


def describe_machine() -> dict[str, object]:
    """Cores and torch's version: enough to read ratios by, and nothing about whose machine it was."""
    return {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
