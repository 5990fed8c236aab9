"""Map and matrix: whole files in three formats, right numbers, strange names as text."""

import csv
import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image, ImageColor
from scipy.cluster.hierarchy import dendrogram
from scipy.spatial.distance import pdist

from task2vec import plots
from task2vec.errors import ResourceError, UsageError
from task2vec.plots import figures
from task2vec.plots.figures import _draw_branches, fit_labels
from tests.failures import refuse
from tests.plots.conftest import DPI
from tests.plots.spaces import make_space, measure

STRANGE = ["$x^2", r"\frac", "a\nb\x1b[31m", "_hidden", "日本語", "\udc80", "x" * 500, "", "=1+1"]


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def check_files(files, name):
    """Three whole files, the picture no wider than a paper; the rows of the table."""
    assert [file.name for file in files] == [f"{name}.png", f"{name}.pdf", f"{name}.csv"]
    pixels = read_pixels(files[0])
    assert 60 < pixels.shape[1] <= 7.2 * DPI + 1 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    assert files[1].read_bytes()[:4] == b"%PDF"
    return read(files[2])


@pytest.mark.parametrize("count", [2, 200])
def test_a_matrix_fits_the_width_of_a_paper(tmp_path, count):
    distances, groups = make_space(count, 14 if count == 200 else 2)
    names = [f"task {number}" for number in range(count)]
    rows = check_files(plots.draw_matrix(distances, names, out=tmp_path / "matrix", groups=groups), "matrix")
    order = [names.index(row["task"]) for row in rows]
    assert sorted(order) == list(range(count))
    assert [row["group"] for row in rows] == [groups[index] for index in order]
    found = np.array([[float(row[names[column]]) for column in order] for row in rows])
    np.testing.assert_allclose(found, distances[np.ix_(order, order)], rtol=1e-5)


@pytest.mark.parametrize("count", range(2, 8))
def test_a_small_matrix_has_all_names_and_no_scale_for_a_single_distance(monkeypatch, count):
    monkeypatch.setattr(figures, "save_figure", lambda figure, *_: figure)
    names = [f"a rather long name {number}" for number in range(count)]
    figure = plots.draw_matrix(make_space(count)[0], names, out="nowhere")
    figure.draw_without_rendering()
    cells = next(axes for axes in figure.axes if axes.images)
    boxes = {label.get_text(): label.get_window_extent() for label in cells.get_yticklabels() if label.get_visible()}
    assert sorted(boxes) == names and all(figure.bbox.containsx(box.x1) and box.x0 > 0 for box in boxes.values())
    assert any(axes.get_label() == "<colorbar>" for axes in figure.axes) == (count > 2)


def test_thumbnails_are_drawn_in_one_file(tmp_path):
    red = [[Image.new("RGB", (20, 30), "red")]] * 3
    (path,) = plots.draw_matrix(make_space(3)[0], ["a", "b", "c"], out=tmp_path / "strip.PNG", thumbnails=red)
    assert (read_pixels(path) == (255, 0, 0)).all(axis=2).sum() > 300 and list(tmp_path.iterdir()) == [path]


def test_the_branches_are_those_of_scipy():
    tree = plots.link_tasks(make_space(9)[0])
    axes = Figure().subplots()
    _draw_branches(axes, tree)
    drawn = sorted(np.round(segment, 9).tolist() for segment in axes.collections[0].get_segments())
    expected = dendrogram(tree, no_plot=True)
    pairs = zip(expected["dcoord"], expected["icoord"], strict=True)
    assert drawn == sorted(np.round(np.column_stack([d, (np.array(i) - 5) / 10]), 9).tolist() for d, i in pairs)


def test_a_map_and_its_places(tmp_path):
    positions, groups = np.random.default_rng(0).normal(size=(20, 2)), make_space(20)[1]
    names = [f"task {number}" for number in range(20)]
    rows = check_files(plots.draw_map(positions, names, out=tmp_path / "map", groups=groups), "map")
    np.testing.assert_allclose([[float(row["x"]), float(row["y"])] for row in rows], positions, rtol=1e-4)
    pixels = read_pixels(tmp_path / "map.png")
    for look in plots.choose_looks(groups).values():
        assert (abs(pixels.astype(int) - ImageColor.getrgb(look.colour)).max(axis=2) < 40).sum() > 15


def test_two_maps_side_by_side_are_the_same_bytes_again(tmp_path):
    one, again = make_space(6)[0][:, :2], []
    for _ in range(2):
        maps = {"tasks": one, "domains": -one}
        files = plots.draw_map(maps, list("abcdef"), out=tmp_path / "maps", groups=list("xxyyzz"))
        again.append([file.read_bytes() for file in files])
    assert again[0] == again[1]
    assert [float(row["x, tasks"]) for row in read(files[2])] == [-float(row["x, domains"]) for row in read(files[2])]


def test_strange_names_are_text(tmp_path):
    places = np.random.default_rng(0).normal(size=(len(STRANGE), 2))
    plots.draw_matrix(measure(places), STRANGE, out=tmp_path / "t.png", groups=STRANGE, title=STRANGE[2])
    plots.draw_map(places, STRANGE, out=tmp_path / "m", groups=STRANGE, title="".join(STRANGE))
    assert len(list(tmp_path.iterdir())) == 4
    assert [row["task"] for row in read(tmp_path / "m.csv")][-1] == "'=1+1"


def test_points_in_one_place_and_equal_distances_are_drawn(tmp_path):
    assert plots.draw_map(np.zeros((3, 2)), ["a", "b", "c"], out=tmp_path / "m.svg")[0].read_bytes()[:4] == b"<?xm"
    assert plots.draw_matrix(np.zeros((3, 3)), ["a", "b", "c"], out=tmp_path / "t.pdf")[0].read_bytes()[:4] == b"%PDF"


def test_what_does_not_fit_is_refused(tmp_path):
    two, out = ["a", "b"], tmp_path / "m"
    refuse(UsageError, "2 names", plots.draw_map, np.zeros((3, 2)), two, out=out)
    refuse(UsageError, "finite", plots.draw_map, np.full((2, 2), np.nan), two, out=out)
    refuse(UsageError, "1 groups do not match 2", plots.draw_map, np.eye(2), two, out=out, groups=["x"])
    refuse(UsageError, "two tasks or more", plots.draw_matrix, np.zeros((1, 1)), ["a"], out=out)
    refuse(UsageError, "not symmetric", plots.draw_matrix, np.array([[0, 1], [2, 0]]), two, out=out)
    refuse(ResourceError, "nowhere", plots.draw_map, np.eye(2), two, out=tmp_path / "nowhere" / "m")
    assert list(tmp_path.iterdir()) == []


def test_labels_cover_neither_points_nor_one_another():
    rng = np.random.default_rng(0)
    points, sizes = 100 * rng.random((40, 2)), np.column_stack([8 + 8 * rng.random(40), np.full(40, 3.0)])
    places = fit_labels(points, sizes, bounds=(0, 0, 100, 100), gap=1.5)
    boxes = [(*place, *(np.array(place) + size)) for place, size in zip(places, sizes, strict=True) if place]
    assert len(boxes) > 30 and np.min(boxes) >= 0 and np.max(boxes) <= 100
    for left, bottom, right, top in boxes:
        assert not ((points > (left, bottom)) & (points < (right, top))).all(axis=1).any()
    for one, other in itertools.combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


# Linear RGB to cones, and their cube roots to Oklab.
CONES = np.reshape([0.4122, 0.5363, 0.0514, 0.2119, 0.6807, 0.1074, 0.0883, 0.2817, 0.63], (3, 3))
LAB = np.reshape([0.2105, 0.7936, -0.0041, 1.978, -2.4286, 0.4506, 0.0259, 0.7828, -0.8087], (3, 3))
# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB; the first is the plain eye.
EYES = {
    "plain": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


@pytest.mark.parametrize("eye", EYES)
def test_colours_and_marks_stay_apart_for_every_eye(eye):
    looks = plots.choose_looks([str(number) for number in range(96)])
    assert len({(look.colour, look.mark) for look in looks.values()}) == 96
    rgb = np.array([ImageColor.getrgb(colour) for colour in plots.COLOURS]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = (linear @ np.array(EYES[eye]).T).clip(0, 1)
    assert pdist(np.cbrt(seen @ CONES.T) @ LAB.T).min() > 0.05
