"""Small evidence with everything in it that strategies go by."""

import numpy as np

from task2vec.distance import pairwise_from_logs
from task2vec.select.evidence import DOMAIN, SYMMETRIC, TAXONOMIC, Evidence
from task2vec.select.strategies.scored import SCORED


def make_evidence(seed=0, *, tasks=9, experts=6, filters=40, seeds=3, missing=0.0, unknown=1, groups=3):
    """Random tasks and experts: the first of unknown lesson and generic, others were taught tasks of their own."""
    rng = np.random.default_rng(seed)
    vectors, lessons = np.exp(rng.normal(size=(tasks, filters))), np.exp(rng.normal(size=(experts, filters)))
    lessons[:unknown] = np.nan
    logs = np.log(np.concatenate([vectors, np.nan_to_num(lessons, nan=1.0)]))
    gaps = pairwise_from_logs(logs, device="cpu")
    trivials = np.full((experts, filters), 1e-2)
    simplicity = pairwise_from_logs(logs[tasks:], others=np.log(trivials[:1]), device="cpu")[:, 0]
    is_known = np.arange(experts) >= unknown
    level = rng.uniform(0.2, 0.5, size=(tasks, 1)) + rng.normal(scale=0.05, size=experts)
    errors = np.clip(level + rng.normal(scale=0.05, size=(tasks, experts)), 0.01, 0.95)[:, :, None]
    errors = errors + rng.normal(scale=0.01, size=(tasks, experts, seeds))
    errors[rng.random((tasks, experts)) < missing] = np.nan
    is_candidate = np.ones((tasks, experts), dtype=bool)
    is_candidate[1, unknown] = False
    domain = np.abs(rng.normal(size=(tasks, tasks)))
    names = [f"set {row % groups}" for row in range(tasks)]
    return Evidence(
        tuple(f"task {row}" for row in range(tasks)),
        tuple(f"expert {column}" for column in range(experts)),
        errors,
        is_candidate,
        tuple(names),
        tuple(f"lesson {column}" if column >= unknown else None for column in range(experts)),
        tuple(f"set {column % groups}" if column >= unknown else None for column in range(experts)),
        generic=0 if unknown else None,
        parameters=rng.integers(1, 4, size=experts).astype(float),
        images=rng.integers(50, 900, size=tasks),
        classes=rng.integers(2, 20, size=tasks),
        distances={SYMMETRIC: gaps[:tasks, :tasks], DOMAIN: (domain + domain.T) * (1 - np.eye(tasks))},
        to_lessons={
            SYMMETRIC: np.where(is_known, gaps[:tasks, tasks:], np.nan),
            DOMAIN: np.where(is_known, np.abs(rng.normal(size=(tasks, experts))), np.nan),
            TAXONOMIC: np.where(is_known, rng.integers(0, 5, size=(tasks, experts)), np.nan),
        },
        simplicity=np.where(is_known, simplicity, np.nan),
        scores={name: rng.normal(size=(tasks, experts)) for name in SCORED},
        vectors=vectors,
        lesson_vectors=lessons,
        lesson_trivials=np.where(is_known[:, None], trivials, np.nan),
        norms=vectors.sum(1),
        halves=errors[:, :, :2] + rng.normal(scale=0.01, size=(tasks, experts, 2)),
    )
