"""Does the embedding choose well where experts are in the pool? `python -m benchmarks.domain_experts`.

The pool is seven pretrained networks and an expert for each of 38 datasets (`experiments.metatask.build domains`).
Every source of images is left out in turn, with its experts. Shown are mean errors of what strategies choose, in
percent, points over the average-best model with a 95% interval over samples of sources, and the two-sided p of flipping
the signs of sources (strategies with LogME on the first split alone, as is all that they are compared with); the same
with the networks alone and with the experts alone, and the optimum, chosen on one half of the test images and measured
on the other. Then on how many datasets the best expert is better than the best network,
both chosen and measured in that way, and by how much.
"""

from pathlib import Path

import numpy as np

import task2vec as t2v
from benchmarks.measure import make_parser, show_table, write_json
from task2vec.select import unbiased_optimum

FILE = Path(__file__).resolve().parents[1] / "experiments/metatask/domain_experts.safetensors"
PROBE = "tf_efficientnet_lite0"
STRATEGIES = ("average_best", "imagenet", "symmetric", "logme")


def compare(metatask: t2v.MetaTask, shots: str) -> list[dict[str, object]]:
    """A row for each strategy and for the optimum, with all models, the pretrained networks alone, and the experts."""
    networks, experts = split(metatask)
    rows = []
    for name, models in (("all", None), ("networks", networks), ("experts", experts)):
        pool = metatask.only(range(len(metatask.tasks)), models)
        strategies = [one for one in STRATEGIES if name != "experts" or one != "imagenet"]
        found = t2v.evaluate(pool, strategies, shots=shots, leave="domain", probe=PROBE)
        about = {"shots": shots, "models": f"{len(pool.models)} ({name})"}
        for row in found.rows:
            experts = [pool.models[one].source_task is not None for one in found.outcomes[row["strategy"]].chosen]
            ends = (row["gap_group_low"], row["gap_group_high"])
            line = about | {"strategy": row["strategy"], "error": row["error"], "over average-best": row["gap"]}
            line |= {"95 %": "" if None in ends else "{:+.2f} to {:+.2f}".format(*ends), "two-sided p": row["p_group"]}
            rows.append(line | {"experts chosen": f"{sum(experts)} of {len(experts)}"})
        if found.optimum is not None:
            gap = 100 * float(np.mean(found.optimum - found.outcomes["average_best"].errors))
            best = {"strategy": "optimum", "error": 100 * float(found.optimum.mean()), "over average-best": gap}
            rows.append(about | best | {"95 %": "", "two-sided p": None, "experts chosen": ""})
    return rows


def split(metatask: t2v.MetaTask) -> tuple[list[int], list[int]]:
    """The numbers of networks and of experts."""
    is_expert = [model.source_task is not None for model in metatask.models]
    return [n for n, one in enumerate(is_expert) if not one], [n for n, one in enumerate(is_expert) if one]


def count_better(metatask: t2v.MetaTask, shots: str) -> str:
    """On how many datasets the best expert of another source is better than the best network, and where by most."""
    selected, (networks, experts) = metatask.select(shots, probe=PROBE), split(metatask)
    assert selected.halves is not None
    errors, halves = selected.errors, selected.halves
    known = np.isfinite(halves).all((2, 3))
    best = []
    for pool in (networks, experts):
        optimum, chosen_on = unbiased_optimum(errors[:, pool], known[:, pool], halves[:, pool])
        assert optimum is not None and chosen_on == "halves"
        best.append(optimum.mean(1))
    gaps = 100 * (best[1] - best[0])
    means = np.where(known[:, experts, None], halves[:, experts].mean(2), np.inf)
    names = np.array([metatask.models[number].source_task for number in experts])[means.argmin(1)]  # by half
    top = ", ".join(f"{metatask.tasks[row].name} {gaps[row]:+.1f} ({', '.join(dict.fromkeys(names[row]))})"
                    for row in np.argsort(gaps)[:5])  # fmt: skip
    return f"{shots}: better on {int((gaps < 0).sum())} of {len(gaps)}, mean {gaps.mean():+.2f} points; {top}"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--file", type=Path, default=FILE, help="what experiments.metatask.build domains wrote")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    metatask = t2v.load_metatask(given.file)
    rows = [row for shots in ("5", "half") for row in compare(metatask, shots)]
    show_table(list(rows[0]), [["" if value is None else value for value in row.values()] for row in rows])
    better = [count_better(metatask, shots) for shots in ("5", "half")]
    print("best expert against best network,", "\n".join(better))
    write_json(given.json, {"strategies": rows, "best expert against best network": better}, indent=1)


if __name__ == "__main__":
    main()
