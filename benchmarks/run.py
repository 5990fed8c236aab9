"""Run the measurements, print every promised ratio with its target, and write one JSON file.

    python benchmarks/run.py [--quick] [--only pairwise,memory] [--shared DIR] [--out FILE] [--processor-time]

Real images and weights are read from the shared folder beside the repository. Without them, only the pairwise
distances, the memory, the library and the server are measured.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

from benchmarks.material import missing_material  # noqa: E402
from benchmarks.measure import (  # noqa: E402
    MEASURED,
    Plan,
    Verdict,
    choose_clock,
    describe_machine,
    make_parser,
)

# The quick ones first, so that a mistake shows up early.
# LONG_PARTS take hours without a GPU, so they run only with --only.
PARTS = ("distance_from_limit", "pairwise", "memory", "library_adds", "web_load", "many_tasks", "time_to_error")
LONG_PARTS = ("error_against_time",)
NEEDS_MATERIAL = ("distance_from_limit", "many_tasks", "time_to_error", "error_against_time")


def main() -> int:
    """Measure the wanted parts; 1 if a promise was missed, 0 otherwise."""
    arguments = _parse()
    clock_name, clock = choose_clock(arguments)
    plan = Plan(arguments.shared, arguments.quick, clock, arguments.device, arguments.old_draws, arguments.errors)
    reason = missing_material(plan.shared)
    results: dict[str, object] = {"machine": describe_machine(), "is_quick": plan.is_quick}
    results["clock"] = clock_name
    verdicts: list[Verdict] = []
    for part in arguments.only:
        if reason and part in NEEDS_MATERIAL:
            print(f"\n{part} skipped: {reason}", flush=True)
            results[part] = {"skipped": reason}
            continue
        measured, judged = importlib.import_module(f"benchmarks.{part}").measure(plan)
        results.update(measured)
        verdicts += judged
        results["verdicts"] = [verdict.to_dict() for verdict in verdicts]
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        # After every part, because runs are long.
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print("\nRatios of this run" + (" (quick: they only show that everything runs)" if plan.is_quick else ""))
    for verdict in verdicts:
        print(f"  {verdict}")
    print(f"written to {arguments.out}")
    return 0 if plan.is_quick or all(verdict.is_met for verdict in verdicts) else 1


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True, has_clock=True)
    parser.add_argument("--quick", action="store_true", help="a small part of everything, to see that it runs")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results.json", help="where the JSON goes")
    parser.add_argument("--device", default="cpu", help="where distances and embeddings run: cpu or cuda")
    parser.add_argument("--errors", type=Path, default=MEASURED / "errors.json", help="errors for time_to_error")
    parser.add_argument(
        "--old-draws", type=int, default=10_000, help="draws of the original algorithm in error_against_time"
    )
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    unknown = sorted(set(arguments.only) - {*PARTS, *LONG_PARTS})
    if unknown:
        parser.error(f"--only {','.join(unknown)} is not known. Choose from {', '.join([*PARTS, *LONG_PARTS])}.")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
