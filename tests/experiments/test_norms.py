"""Norm and error on all tasks of the package."""

import numpy as np
import pytest
from scipy.stats import spearmanr

import task2vec as t2v
from experiments import norms
from tests.experiments.material import ROOT, read_csv, run


def test_the_committed_table_comes_out_again_and_is_spearmans_over_all_tasks(tmp_path):
    result = run(norms.app, "--out", tmp_path)
    assert (
        "holds    all tasks, resnet34 robust" in result.stdout and "unclear  labels, resnet34 robust" in result.stdout
    )
    committed = ROOT / "docs" / "properties" / norms.FILE
    assert (tmp_path / norms.FILE).read_text() == committed.read_text()
    rows = {(row["tasks"], row["space"]): row for row in read_csv(committed)}
    metatask = t2v.bundled_metatask()
    for space, embeddings in metatask.embeddings.items():
        numbers = np.array([(one.norm(), one.provenance["head"]["cv_error"]) for one in embeddings])
        row = rows[norms.ALL, space]
        assert row["count"] == 103 and row["spearman"] == pytest.approx(spearmanr(*numbers.T).statistic, rel=1e-5)
        is_label = np.array([task.family == "labels" for task in metatask.tasks])
        wanted = spearmanr(*numbers[is_label].T).statistic
        assert rows["labels", space]["spearman"] == pytest.approx(wanted, rel=1e-4)
        assert rows[norms.GROUPS, space]["count"] == 43
