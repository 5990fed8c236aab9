"""Questions about pixels: each number moves with what it is named after, and with nothing else that is simple."""

import numpy as np
import pytest

from experiments.photometry import QUESTIONS, ask, describe_picture

NOISE = np.random.default_rng(0).integers(60, 190, (64, 64, 3)).astype(float)


def stripes(angle, period=8, side=64):
    """Parallel stripes whose direction of change is `angle` degrees from the horizontal."""
    rows, columns = np.mgrid[:side, :side]
    wave = np.cos(2 * np.pi * (columns * np.cos(np.deg2rad(angle)) + rows * np.sin(np.deg2rad(angle))) / period)
    return np.repeat((127 + 100 * wave)[..., None], 3, axis=2)


def plain(red, green, blue, side=64):
    return np.ones((side, side, 3)) * [red, green, blue]


def test_every_question_is_answered_in_their_order():
    assert tuple(describe_picture(NOISE)) == QUESTIONS
    assert all(np.isfinite(list(describe_picture(picture).values())).all() for picture in (NOISE, plain(0, 0, 0)))


@pytest.mark.parametrize(
    ("question", "less", "more"),
    [
        ("brightness", NOISE, NOISE + 30),
        ("contrast", NOISE * 0.5 + 60, NOISE),
        ("saturation", plain(100, 100, 100), plain(200, 100, 20)),
        ("warmth", plain(20, 100, 200), plain(200, 100, 20)),
        ("sharpness", NOISE * 0.3 + 80, NOISE),
        ("grain", stripes(0, period=32), stripes(0, period=6)),
        ("parallelism", NOISE, stripes(30)),
        ("symmetry", np.linspace(0, 255, 64)[None, :, None] * np.ones((64, 1, 3)), plain(9, 9, 9)),
    ],
)
def test_a_number_moves_with_its_name(question, less, more):
    assert describe_picture(less)[question] < describe_picture(more)[question]


@pytest.mark.parametrize("angle", [0, 45, 90, 135])
def test_directions_are_those_in_which_the_picture_changes(angle):
    found = describe_picture(stripes(angle))["direction"]
    assert min(abs(found - angle), 180 - abs(found - angle)) < 3
    assert ask({"direction": np.array([found])}, "direction")[0][0] == angle // 45


@pytest.mark.parametrize(
    ("colour", "name"),
    [((200, 30, 30), "red or violet"), ((200, 120, 20), "orange"), ((200, 190, 20), "yellow"), ((30, 180, 40), "green"),
     ((30, 60, 200), "blue"), ((180, 30, 200), "red or violet")],
)  # fmt: skip
def test_hues_have_their_names(colour, name):
    labels, names = ask({"hue": np.array([describe_picture(plain(*colour))["hue"]])}, "hue")
    assert names[labels[0]] == name


def test_positions_are_where_the_detail_is():
    picture = plain(100, 100, 100)
    picture[8:20, 40:60] = NOISE[8:20, 40:60]
    told = describe_picture(picture)
    assert told["left to right"] > 0.6 and told["top to bottom"] < 0.4
    mirrored = describe_picture(picture[:, ::-1])
    assert mirrored["left to right"] == pytest.approx(1 - told["left to right"])
    assert mirrored["brightness"] == pytest.approx(told["brightness"])


def test_the_centre_is_compared_with_the_border():
    picture = plain(50, 50, 50)
    picture[20:44, 20:44] = 200
    assert describe_picture(picture)["centre against border"] > 0.2
    assert describe_picture(255 - picture)["centre against border"] < -0.2


def test_thirds_are_those_of_the_reference():
    values = {"contrast": np.array([0.0, 5.0, 10.0])}
    assert ask(values, "contrast")[0].tolist() == [0, 1, 2]
    assert ask(values, "contrast", np.arange(100.0))[0].tolist() == [0, 0, 0]
