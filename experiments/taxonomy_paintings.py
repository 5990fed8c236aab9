"""Painted images with independent attributes: every one is there or not by a coin of its own."""

import colorsys

import numpy as np
from PIL import Image, ImageDraw

ATTRIBUTES = ("warm", "large", "round", "on the left", "striped", "on dark ground")
SIDE = 96
# Drawn this much larger and then shrunk: soft edges.
_OVERSAMPLING = 3


def paint_images(count: int, *, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """So many images, and their attributes (images, attributes) as booleans; every attribute is in half of them.

    The two halves of the images have equally many of each, too.

    Example:
        >>> pictures, answers = paint_images(8, rng=np.random.default_rng(0))
        >>> len(pictures), answers.sum(axis=0).tolist()
        (8, [4, 4, 4, 4, 4, 4])
    """
    halves = [count // 2, count - count // 2]
    coins = [[rng.permutation(np.arange(half) % 2 == 0) for half in halves] for _ in ATTRIBUTES]
    answers = np.stack([np.concatenate(pair) for pair in coins], axis=1)
    return [_paint(row.tolist(), rng) for row in answers], answers


def _paint(answers: list[bool], rng: np.random.Generator) -> Image.Image:
    """One figure on a noisy ground."""
    is_warm, is_large, is_round, is_left, is_striped, is_dark = answers
    canvas = SIDE * _OVERSAMPLING
    hue = rng.uniform(-0.06, 0.12) if is_warm else rng.uniform(0.48, 0.68)
    colour = _rgb(hue, rng.uniform(0.6, 0.9), rng.uniform(0.55, 0.9))
    ground = rng.uniform(20, 60) if is_dark else rng.uniform(190, 240)
    radius = canvas * (rng.uniform(0.19, 0.24) if is_large else rng.uniform(0.09, 0.13))
    x = canvas * rng.uniform(0.25, 0.36) if is_left else canvas * rng.uniform(0.64, 0.75)
    y = canvas * rng.uniform(0.3, 0.7)
    mask = Image.new("L", (canvas, canvas), 0)
    box = (x - radius, y - radius, x + radius, y + radius)
    if is_round:
        ImageDraw.Draw(mask).ellipse(box, fill=255)
    else:
        ImageDraw.Draw(mask).regular_polygon((x, y, 1.2 * radius), 4, rotation=int(rng.integers(90)), fill=255)
    share = np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.float64)[..., None] / 255
    figure = colour * (_weave(rng) if is_striped else 1.0)
    pixels = (1 - share) * ground + share * figure + rng.normal(0, 5, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def _weave(rng: np.random.Generator) -> np.ndarray:
    """Stripes in a random direction, between 0.35 and 1."""
    turn, period = rng.uniform(0, np.pi), rng.uniform(5, 8)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    wave = np.sin(2 * np.pi * (np.cos(turn) * columns + np.sin(turn) * rows) / period)
    return np.where(wave > 0, 1.0, 0.35)[..., None]


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return 255 * np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value))
