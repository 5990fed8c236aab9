"""How groups of tasks look: a colour and a mark each, the same in every picture.

The colours stay apart for the colour-blind (six of Okabe and Ito, six more chosen so that no two come near under
deuteranopia and protanopia) and on paper as well as on a dark page. Marks differ too, for print without colour; colours
begin again after twelve groups, with other marks, so that 96 groups look different.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from task2vec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GREY, PALE = "#22313f", "#8a94a0", "#e7eaee"
# Inches: the width of two columns of a paper.
PAPER_WIDTH = 7.2

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#2f2a9c", "#773311", "#00505e", "#a8327d", "#d9cf3a", "#a9b1ba",
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")
# How a patch of colour is filled when the colours begin again.
FILLS = ("", "//////", "......", "xxxxxx")
NO_GROUP = ""


@dataclass(frozen=True)
class Look:
    """The colour of a group, its mark as points, and its fill as a patch."""

    colour: str
    mark: str
    fill: str = ""


def choose_looks(groups: Sequence[str]) -> dict[str, Look]:
    """The look of every group, in the order in which groups first appear.

    Example:
        >>> looks = choose_looks(["birds", "dogs", "birds"])
        >>> list(looks), looks["dogs"]
        (['birds', 'dogs'], Look(colour='#d55e00', mark='s', fill=''))
    """
    looks = {}
    for number, group in enumerate(dict.fromkeys(groups)):
        lap, colour = divmod(number, len(COLOURS))
        looks[group] = Look(COLOURS[colour], MARKS[(number + lap) % len(MARKS)], FILLS[lap % len(FILLS)])
    return looks


def check_groups(groups: Sequence[str] | None, count: int) -> list[str]:
    """One group per task; where none are given, all tasks are of one group without a name."""
    if groups is None:
        return [NO_GROUP] * count
    if len(groups) != count:
        raise UsageError(
            f"{len(groups)} groups do not fit {count} tasks: every task has one colour. Pass one group per task, or "
            "leave them out."
        )
    return [str(group) for group in groups]


def style_axes(axes: "Axes", x: str, y: str) -> None:
    """Labels, a quiet grid, and no more frame than two lines."""
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(which="both", labelsize=7, color=GREY, labelcolor=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
