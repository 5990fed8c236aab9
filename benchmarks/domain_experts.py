"""Does the embedding choose well where experts are in the pool? `python -m benchmarks.domain_experts FILE`.

The pool is seven pretrained networks and an expert for each of 38 whole datasets (`experiments.metatask.domains`).
Every source of images is left out in turn, with its experts. Shown are mean errors of what strategies choose, in
percent, points over the average-best model with a 95 % interval over samples of sources, and the p of flipping the
signs of sources; the same with the networks alone, and the optimum, chosen on one half of the test images and measured
on the other.
"""

from pathlib import Path

import numpy as np

import task2vec as t2v
from benchmarks.measure import make_parser, show_table, write_json

STRATEGIES = ("average_best", "imagenet", "symmetric", "combined", "combined + logme", "logme")


def compare(metatask: t2v.MetaTask, shots: str) -> list[dict[str, object]]:
    """A row for each strategy and for the optimum, with all models and with the pretrained networks alone."""
    networks = [column for column, model in enumerate(metatask.models) if model.source_task is None]
    rows = []
    for pool in (metatask, metatask.only(range(len(metatask.tasks)), networks)):
        found = t2v.evaluate(pool, STRATEGIES, shots=shots, leave="domain")
        about = {"shots": shots, "models": len(pool.models)}
        for row in found.rows:
            experts = [pool.models[one].source_task is not None for one in found.outcomes[row["strategy"]].chosen]
            ends = (row["gap_group_low"], row["gap_group_high"])
            line = about | {"strategy": row["strategy"], "error": row["error"], "over average-best": row["gap"]}
            line |= {"95 %": "" if None in ends else "{:+.2f} to {:+.2f}".format(*ends), "p": row["p_group"]}
            rows.append(line | {"experts chosen": f"{sum(experts)} of {len(experts)}"})
        if found.optimum is not None:
            gap = 100 * float(np.mean(found.optimum - found.outcomes["average_best"].errors))
            best = {"strategy": "optimum", "error": 100 * float(found.optimum.mean()), "over average-best": gap}
            rows.append(about | best | {"95 %": "", "p": None, "experts chosen": ""})
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("file", type=Path, help="the meta-task that experiments.metatask.domains wrote")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    rows = [row for shots in ("5", "half") for row in compare(t2v.load_metatask(given.file), shots)]
    show_table(list(rows[0]), [["" if value is None else value for value in row.values()] for row in rows])
    write_json(given.json, rows, indent=1)


if __name__ == "__main__":
    main()
