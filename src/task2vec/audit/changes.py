"""What changed since an earlier report: findings that are new or solved, and the error on the images of both."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from task2vec.audit.analysis import Changes, Finding
from task2vec.errors import DataError, UsageError
from task2vec.library import Library
from task2vec.tasks import Task

LAST = "last"
# An earlier report is one on this dataset if it has at least this share of its images.
MIN_SHARED = 0.5


def find_baseline(baseline: str | Path | None, task: Task, library: Library | None) -> dict[str, Any] | None:
    """The earlier report as plain values: of a JSON file, or the last one on most of these images in a library."""
    if baseline is None:
        return None
    if str(baseline) != LAST:
        try:
            return _read(Path(baseline))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"the baseline '{baseline}' is not an earlier report ({error or type(error).__name__}), so nothing can "
                "be compared. Make one from the data of that time: task2vec report PATH --out FILE.json"
            ) from error
    reports, digests = [], set(task.digests)
    for file in [] if library is None else library.report_file(task.fingerprint).parent.glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):  # written by something else
            document = _read(file)
            if len(digests & {row["digest"] for row in document["table"]}) >= MIN_SHARED * len(digests):
                reports.append(document)
    if not reports:
        raise UsageError(
            f"no earlier report on most of the images of '{task.name}' is in the library, so there is nothing to "
            "compare with. Leave out --baseline this time, or name a file: --baseline FILE.json"
        )
    return max(reports, key=lambda document: document["made"])


def _read(file: Path) -> dict[str, Any]:
    """A report as plain values; an error if it has no findings that can be compared."""
    document = json.loads(file.read_bytes())
    list_findings(document)
    return document | {"made": str(document["made"]), "model": dict(document["model"])}


def list_findings(document: Mapping[str, Any]) -> dict[tuple[Any, ...], Finding]:
    """The findings of a report as plain values, by what identifies them: the content of the images and the problem."""
    digests = {row["image"]: row["digest"] for row in document["table"]}
    findings = {}
    for issue in document["label_issues"]:
        key = "label", digests[issue["image"]], issue["label"]
        findings[key] = Finding("label", (issue["image"],), (issue["label"],))
    for group in document["copies"]:
        images, labels, splits = (tuple(group[name]) for name in ("images", "labels", "splits"))
        members = sorted(zip((digests[image] for image in images), labels, splits, strict=True))
        findings[group["kind"], *members] = Finding(group["kind"], images, labels)
    return findings


def find_changes(now: Mapping[str, Any], before: Mapping[str, Any], groups: Mapping[str, int]) -> Changes:
    """What changed from an earlier report to this one, both as plain values.

    `groups` are numbers of the images by their digests, the same for those that belong in one fold.
    """
    from task2vec.select.decide import CONFIDENCE, SPREAD_FACTOR, find_spread

    findings, earlier = list_findings(now), list_findings(before)
    known = {row["digest"]: row["loss"] for row in before["table"] if row.get("loss") is not None}
    rows = [row for row in now["table"] if row.get("loss") is not None and row["digest"] in known]
    error, low, high = None, None, None
    is_same_model = all(now["model"][name] == before["model"].get(name) for name in ("location", "size"))
    if rows and is_same_model:
        differences = np.array([row["loss"] - known[row["digest"]] for row in rows])
        numbers = np.unique([groups[row["digest"]] for row in rows], return_inverse=True)[1]
        z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * SPREAD_FACTOR
        error, reach = float(differences.mean()), z * find_spread(differences, numbers)
        low, high = error - reach, error + reach
    return Changes(
        since=before["made"],
        new=tuple(findings[key] for key in findings if key not in earlier),
        solved=tuple(earlier[key] for key in earlier if key not in findings),
        images=len(rows),
        error=error,
        low=low,
        high=high,
    )
