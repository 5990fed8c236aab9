"""Pictures of distance matrices: they are there, whole, and survive strange names."""

import numpy as np
import pytest
from PIL import Image

from task2vec.atlas import cluster_order, draw_distance_matrix
from task2vec.errors import MissingExtraError, ResourceError, UsageError


def make_distances(count: int) -> np.ndarray:
    points = np.random.default_rng(0).random((count, 3))
    return np.linalg.norm(points[:, None] - points[None, :], axis=-1)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 60])
def test_a_png_of_any_number_of_tasks(tmp_path, count):
    path = draw_distance_matrix(make_distances(count), [f"task {i}" for i in range(count)], path=tmp_path / "m.png")
    with Image.open(path) as picture:
        assert min(picture.size) > 100
        assert max(picture.size) < 6000
    assert [file.name for file in tmp_path.iterdir()] == ["m.png"]


def test_thumbnails_are_drawn(tmp_path):
    red = [[Image.new("RGB", (20, 30), "red")]] * 3
    plain = draw_distance_matrix(make_distances(3), ["a", "b", "c"], path=tmp_path / "plain.png")
    strip = draw_distance_matrix(make_distances(3), ["a", "b", "c"], path=tmp_path / "strip.png", thumbnails=red)
    with Image.open(plain) as without, Image.open(strip) as within:
        assert within.width > without.width
        pixels = np.asarray(within.convert("RGB")).reshape(-1, 3)
    assert (pixels == (255, 0, 0)).all(axis=1).sum() > 1000


@pytest.mark.parametrize("suffix", ["pdf", "svg", "PNG"])
def test_the_extension_chooses_the_format(tmp_path, coarse, suffix):
    path = draw_distance_matrix(make_distances(2), ["a", "b"], path=tmp_path / f"m.{suffix}")
    assert {"pdf": b"%PDF", "svg": b"<?xm", "PNG": b"\x89PNG"}[suffix] == path.read_bytes()[:4]


@pytest.mark.parametrize("name", ["$x^2", r"\frac", "a\nb\x1b[31m", "<script>", "日本語", "\udc80", "x" * 500, ""])
def test_strange_names_are_text(tmp_path, coarse, name):
    assert draw_distance_matrix(make_distances(2), [name, "b"], path=tmp_path / "m.png").exists()


def test_equal_distances_do_not_divide_by_zero(tmp_path, coarse):
    assert draw_distance_matrix(np.zeros((3, 3)), ["a", "b", "c"], path=tmp_path / "m.png").exists()


def test_neighbours_stand_side_by_side():
    points = np.array([0.0, 5.0, 0.1, 5.1, 9.0])
    order = cluster_order(abs(points[:, None] - points[None, :]))
    assert abs(order.index(0) - order.index(2)) == 1
    assert abs(order.index(1) - order.index(3)) == 1


@pytest.mark.parametrize(
    "distances", [np.zeros((2, 3)), np.zeros((3, 3)), np.array([[0, np.nan], [np.nan, 0]]), np.array([[0, 1], [2, 0]])]
)
def test_what_is_no_distance_matrix_is_refused(tmp_path, distances):
    with pytest.raises(UsageError):
        draw_distance_matrix(distances, ["a", "b"], path=tmp_path / "m.png")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.png"):
        draw_distance_matrix(make_distances(2), ["a", "b"], path=tmp_path / "m.exe")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ResourceError, match="nowhere"):
        draw_distance_matrix(make_distances(2), ["a", "b"], path=tmp_path / "nowhere" / "m.png")


def test_without_matplotlib_the_command_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'task2vec\[plot\]'"):
        draw_distance_matrix(make_distances(2), ["a", "b"], path=tmp_path / "m.png")
