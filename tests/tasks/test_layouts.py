"""Published datasets known by their files, told apart where they share names, and refused where it is unclear."""

import json

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_catalog, recognize_layout
from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist, write_inaturalist


@pytest.mark.parametrize(
    ("make", "layout", "name"),
    [
        (make_cub, "cub200", "cub200"),
        (make_deepfashion, "deepfashion", "deepfashion"),
        (write_inaturalist, "inaturalist", "inaturalist2018"),
        (lambda folder: write_inaturalist(folder, 2021), "inaturalist", "inaturalist2021"),
        (lambda folder: write_inaturalist(folder, 2021, mini=True), "inaturalist", "inaturalist2021 mini"),
        (write_imaterialist, "imaterialist", "imaterialist2018"),
        # Both of the last have train.json and val.json.
        (lambda folder: write_imaterialist(folder, with_map=False, val="val"), "imaterialist", "imaterialist2018"),
    ],
)
def test_a_dataset_is_known_by_its_files(tmp_path, make, layout, name):
    make(tmp_path)
    assert recognize_layout(tmp_path) == layout
    assert read_catalog(tmp_path).name == name
    assert read_catalog(tmp_path, layout=layout).name == name


def test_names_of_labels_are_handed_on(tmp_path):
    write_imaterialist(tmp_path)
    labels = tmp_path / "mine.csv"
    (tmp_path / "iMat_fashion_2018_label_map_228.csv").rename(labels)
    assert read_catalog(tmp_path, labels=labels).find("Black").group == "color"
    make_cub(tmp_path / "birds")
    with pytest.raises(UsageError, match="only imaterialist has one"):
        read_catalog(tmp_path / "birds", labels=labels)


def test_what_is_unknown_or_unclear_is_refused(tmp_path):
    assert recognize_layout(tmp_path) is None
    with pytest.raises(DataError, match="has no files of a dataset that we know"):
        read_catalog(tmp_path)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        read_catalog(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no reader for 'cifar'"):
        read_catalog(tmp_path, layout="cifar")
    (tmp_path / "train.json").write_text(json.dumps({"rows": [1, 2, 3]}))
    assert recognize_layout(tmp_path) is None
    make_cub(tmp_path)
    make_deepfashion(tmp_path)
    with pytest.raises(UsageError, match="files of cub200 and deepfashion"):
        recognize_layout(tmp_path)
    assert read_catalog(tmp_path, layout="cub200").name == "cub200"
