"""Steps where nobody watches, and where somebody does; devices that are not there."""

import pytest

from task2vec import progress as bars
from task2vec.cli import progress
from task2vec.cli.device import check_device
from task2vec.errors import UsageError


@pytest.mark.parametrize(("is_watched", "told"), [(False, ["a", "b\\x1b", "a"]), (True, ["a", "a", "b\\x1b", "a"])])
def test_steps_of_one_name_are_told_once_as_lines(monkeypatch, is_watched, told):
    monkeypatch.setattr(progress, "is_watched", lambda: is_watched)
    heard = []
    tell = progress.say_once(heard.append)
    for step in ("a", "a", "b\x1b", "a"):
        tell(step)
    assert heard == told


def test_a_device_that_is_not_there_is_named():
    check_device("cpu")
    check_device(None)
    with pytest.raises(UsageError, match=r"--device tpu9 cannot be used.*--device cpu"):
        check_device("tpu9")


@pytest.mark.parametrize(("pause", "lines"), [(0.0, 3), (1e9, 0)])
def test_where_there_is_no_terminal_a_line_now_and_then(monkeypatch, capsys, pause, lines):
    monkeypatch.setattr(bars, "PAUSE", pause)
    with bars.watch(True) as report:
        epochs, steps = report("epochs", 2), report("steps", 8)
        steps(3)
        steps(1)
        epochs(1)
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == lines and told.out == ""
    assert not lines or told.err.splitlines()[-1].endswith(" s: epochs 1 of 2, steps 4 of 8")
    with bars.watch(False) as report:
        report("epochs", 2)(1)
    assert capsys.readouterr().err == ""
