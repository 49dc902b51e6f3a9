"""A bound in slices: a stop of the process, in which nobody has a turn, costs one of them."""

from __future__ import annotations

from autoinstr.patience import within


class Stalling:
    """An event that is set by a thread which has its turn in the second wait; the first was used up by a stop."""

    def __init__(self, set_in: int) -> None:
        self.set_in = set_in
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) >= self.set_in


def test_a_stop_is_not_the_end_of_the_wait() -> None:
    done = Stalling(set_in=2)
    assert within(5.0, done.wait)
    assert done.waited == [0.1, 0.1]


def test_it_ends_for_what_never_comes() -> None:
    never = Stalling(set_in=1000)
    assert not within(5.0, never.wait)
    assert never.waited == [0.1] * 50


def test_a_short_wait_is_one() -> None:
    never = Stalling(set_in=1000)
    assert not within(0.05, never.wait)
    assert never.waited == [0.05]
