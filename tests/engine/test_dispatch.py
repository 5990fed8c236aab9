"""Units shared out among workers of straw: who waits for ever, who dies, and who is ended."""

from collections import deque

import pytest

from task2vec.engine import Unit
from task2vec.engine.bench import Bench
from task2vec.engine.dispatch import Staff
from task2vec.engine.messages import DIED, Message
from task2vec.errors import ResourceError
from tests.engine.cases import Counting, gather


class Straw:
    """A worker in this process. One that sleeps never answers; one that is frail dies after so many answers."""

    def __init__(self, *, sleeps=False, frail=None):
        self.bench, self.said = Bench(), deque()
        self.sleeps, self.frail, self.told = sleeps, frail, []

    def give(self, told):
        self.told.append(told.word)
        self.said.extend(() if self.sleeps else self.bench.answer(told))

    def hear(self):
        if self.frail is not None:
            self.frail -= 1
            if self.frail < 0:
                return Message(DIED, "of straw")
        return self.said.popleft()


class StrawCrew:
    """Hires workers in a given order, and then good ones."""

    def __init__(self, *first):
        self.first, self.hired, self.gone = list(first), [], []

    def hire(self):
        self.hired.append(self.first.pop(0) if self.first else Straw())
        return self.hired[-1]

    def hear(self, hands):
        speaking = [hand for hand in hands if hand.said]
        assert speaking, "everybody waits for ever"
        for hand in speaking:
            yield hand, hand.hear()

    def dismiss(self, hands):
        self.gone.extend(hands)


UNITS = [Unit(str(number), 2) for number in range(7)]
WANTED = {unit.key: [0, 1] for unit in UNITS}


@pytest.mark.parametrize("sleepers", [0, 1, 2])
@pytest.mark.parametrize("is_first", [True, False])
def test_who_never_begins_keeps_no_unit(sleepers, is_first):
    order = [*(Straw(sleeps=True) for _ in range(sleepers)), Straw()]
    crew = StrawCrew(*(order if is_first else order[::-1]), *(Straw(sleeps=True) for _ in range(3 - len(order))))
    values, ends = gather(Staff(crew, 3), Counting(), UNITS)
    assert values == WANTED and set(ends.values()) == {None}
    assert set(crew.gone) == {hand for hand in crew.hired if hand.sleeps}  # the others stay for the next run


def test_no_more_are_hired_than_there_are_units():
    crew = StrawCrew()
    gather(Staff(crew, 5), Counting(), UNITS[:2])
    assert len(crew.hired) <= 2


def test_who_is_there_already_is_taken_first_and_opens_other_work():
    crew = StrawCrew()
    staff = Staff(crew, 1)
    for _ in range(2):
        gather(staff, Counting(), UNITS)
    assert len(crew.hired) == 1 and crew.hired[0].told == ["open"] + 14 * ["begin"]
    staff.idle = dict.fromkeys(staff.idle, b"other work")
    gather(staff, Counting(), UNITS[:1])
    assert len(crew.hired) == 1 and crew.hired[0].told[-2:] == ["open", "begin"]


def test_deaths_of_several_workers_are_counted_by_unit():
    crew = StrawCrew(Straw(frail=2), Straw(frail=3), Straw(frail=4))
    values, ends = gather(Staff(crew, 1), Counting(), UNITS)
    assert values == {**WANTED, "0": [0, 0, 1, 0, 1]}  # it died after one value, after two, and before its end
    assert set(ends.values()) == {None}


def test_a_unit_that_fails_after_a_death_tells_both_attempts():
    crew = StrawCrew(Straw(frail=2))
    _, ends = gather(Staff(crew, 1), Counting(), [Unit("a", "bad")])
    assert ends["a"].kind == "ZeroDivisionError" and ends["a"].attempts == 2


def test_a_unit_that_is_tried_again_goes_first():
    crew = StrawCrew(Straw(frail=1), Straw(sleeps=True))  # for whom another unit waits
    order = [result.key for result in Staff(crew, 2).run(Counting(), UNITS) if result.is_last]
    assert order == [unit.key for unit in UNITS]


def test_false_starts_in_a_row_end_the_run_and_others_do_not():
    crew = StrawCrew(*(Straw(frail=answers) for answers in (0, 0, 1, 0, 0)))
    assert gather(Staff(crew, 1), Counting(), UNITS)[0] == WANTED
    crew = StrawCrew(*(Straw(frail=0) for _ in range(3)))
    with pytest.raises(ResourceError, match=r"3 worker processes in a row died before they could begin \(of straw\)"):
        gather(Staff(crew, 1), Counting(), UNITS)
