"""One task on top of one expert: features once, and both classifiers agree on which expert is better."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import task2vec as t2v
from task2vec.errors import UsageError
from task2vec.experts import linear
from task2vec.experts.cells import measure_cells, plan_cells
from task2vec.experts.linear import linear_error
from task2vec.experts.protocols import ErrorProtocol
from tests.experts.making import make_expert, make_tasks


def test_features_are_computed_once(monkeypatch):
    expert, task = make_expert("once", seed=11), make_tasks()[2]
    passes, compute = [], linear.compute_features
    monkeypatch.setattr(linear, "compute_features", lambda *a: (passes.append(len(a[1])), compute(*a))[1])
    first = linear_error(expert, task, seeds=(0, 1), device="cpu")
    linear_error(expert, task, ErrorProtocol(train=2), device="cpu")
    assert linear_error(expert, task.subset(range(len(task))[::-1]), seeds=(0, 1), device="cpu") == first
    assert passes == [len(task)]
    linear_error(make_expert("other", seed=12), task, device="cpu")
    assert passes == [len(task)] * 2
    assert [(error.seed, error.expert, error.task) for error in first] == [
        (seed, "once", task.fingerprint) for seed in (0, 1)
    ]


def test_what_is_kept_is_bounded(monkeypatch):
    expert, task = make_expert("bounded", seed=13), make_tasks()[2]
    monkeypatch.setattr(linear, "_MOST_BYTES", 10)
    first = linear_error(expert, task, device="cpu")
    assert not linear._KEPT.kept
    assert linear_error(expert, task, device="cpu") == first


def test_a_name_is_no_expert():
    with pytest.raises(UsageError, match="str"):
        linear_error("resnet34", make_tasks()[2])


def test_both_classifiers_rank_experts_the_same_way():
    # Experts of different worth: the same features under more and more noise.
    task = t2v.sample_tasks(images_per_task=60)[2]
    labels = torch.tensor(task.targets)
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(len(task.classes), 24, generator=generator)
    plan = plan_cells(task, [ErrorProtocol(), ErrorProtocol(classifier="achille2019", epochs=2)], range(2))
    means = []
    for noise in (1.0, 4.0, 6.0, 8.0, 12.0, 20.0):
        features = centres[labels] + noise * torch.randn(len(task), 24, generator=generator)
        errors = [error.error for error in measure_cells(features, plan, expert=str(noise))]
        means.append(np.reshape(errors, (2, 2)).mean(1))
    ours, theirs = np.transpose(means)
    assert spearmanr(ours, theirs).statistic > 0.85 and np.ptp(ours) > 0.3
