"""The governor is a pure state machine over memory readings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Sample
from worker.governor import Governor, Level, Thresholds, danger_bytes

BUDGET = 1000
T = Thresholds()


class Rig:
    """A governor fed with shares of the budget, ten times a second."""

    def __init__(self, max_items: int = 16) -> None:
        self.governor = Governor(T, max_items=max_items, budget_bytes=BUDGET)
        self.now = 0.0
        self.cleared = 0

    def feed(self, share: float, times: int = 1, every: float = 0.1) -> Level:
        for _ in range(times):
            self.now += every
            used = int(share * BUDGET)
            decision = self.governor.observe(Sample(active=used, cache=0, peak=0, footprint=used), self.now)
            self.cleared += decision.clear_cache
        return self.governor.level


def test_opens_below_the_first_threshold() -> None:
    """Below 80 % of the budget nothing is held back."""
    rig = Rig()
    assert rig.feed(0.79, 50) is Level.OPEN
    assert rig.governor.may_take()
    assert rig.governor.max_items(idle=False) == 16


def test_queue_takes_nothing_new() -> None:
    """At 80 % intake stops while batches stay as they are."""
    rig = Rig()
    assert rig.feed(0.80, 2) is Level.QUEUE
    assert not rig.governor.may_take()
    assert rig.governor.max_items(idle=False) == 16


def test_shrink_halves_the_batch() -> None:
    """At 90 % the batch is half of what it was."""
    rig = Rig()
    assert rig.feed(0.91, 2) is Level.SHRINK
    assert rig.governor.max_items(idle=False) == 8


def test_shrinking_goes_on_while_it_does_not_help() -> None:
    """Above 90 % the batch is halved every second down to one row, and no further."""
    rig = Rig()
    rig.feed(0.95, 100)
    assert rig.governor.max_items(idle=False) == 1


def test_pause_dispatches_nothing_while_something_runs() -> None:
    """At 100 % no batch goes beside another."""
    rig = Rig()
    assert rig.feed(1.0, 2) is Level.PAUSE
    assert rig.governor.max_items(idle=False) == 0


def test_pause_lets_one_chunk_pass_when_nothing_runs() -> None:
    """A paused worker with nothing running may run one chunk, so that it can never wedge."""
    rig = Rig()
    rig.feed(1.2, 10)
    assert rig.governor.max_items(idle=True) == 1


def test_one_high_sample_clears_the_cache_but_changes_nothing() -> None:
    """A single reading above a line releases the cache and is then judged again."""
    rig = Rig()
    assert rig.feed(1.5) is Level.OPEN
    assert rig.cleared == 1
    assert rig.feed(0.5) is Level.OPEN


def test_held_back_work_keeps_asking_for_memory() -> None:
    """While a level holds work back the cache is released every second, so that no guard can wedge on it."""
    rig = Rig()
    rig.feed(1.2, 2)
    before = rig.cleared
    rig.feed(1.2, 100)
    assert 9 <= rig.cleared - before <= 11


def test_levels_have_an_exit_band() -> None:
    """Five points under the line is not enough to leave a level."""
    rig = Rig()
    rig.feed(0.85, 2)
    assert rig.feed(0.75, 100) is Level.QUEUE
    assert rig.feed(0.69, 100) is Level.OPEN


def test_levels_fall_one_at_a_time() -> None:
    """From pause the way down passes through shrink and queue."""
    rig = Rig()
    rig.feed(1.1, 2)
    rig.feed(0.1, 100)
    assert [change.after for change in rig.governor.transitions] == [
        Level.PAUSE,
        Level.SHRINK,
        Level.QUEUE,
        Level.OPEN,
    ]


def test_the_batch_grows_back() -> None:
    """Once open again, the batch doubles back to its full size."""
    rig = Rig()
    rig.feed(0.95, 100)
    rig.feed(0.1, 400)
    assert rig.governor.level is Level.OPEN
    assert rig.governor.max_items(idle=False) == 16


def test_unknown_readings_hold_the_level() -> None:
    """A sample of zeros is no reading, and changes nothing either way."""
    rig = Rig()
    rig.feed(0.85, 2)
    rig.feed(0.0, 100)
    assert rig.governor.level is Level.QUEUE


def test_danger_is_the_greatest_of_three() -> None:
    """What MLX holds with its cache, what the step reached, and what the process is: the greatest counts."""
    assert danger_bytes(Sample(active=5, cache=6, peak=3, footprint=1)) == 11
    assert danger_bytes(Sample(active=5, cache=0, peak=30, footprint=1)) == 30
    assert danger_bytes(Sample(active=5, cache=0, peak=3, footprint=40)) == 40
    assert danger_bytes(Sample(active=0, cache=0, peak=0, footprint=0)) is None


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.integers(1, 30)), max_size=20))
def test_pressure_that_ends_is_forgotten(history: list[tuple[float, int]]) -> None:
    """After any history, calm brings back the open level and the full batch: nothing latches."""
    rig = Rig()
    for share, times in history:
        rig.feed(share, times)
    rig.feed(0.2, 600)
    assert rig.governor.level is Level.OPEN
    assert rig.governor.max_items(idle=False) == 16


@given(st.lists(st.floats(0.01, 2.0), max_size=200))
def test_never_falls_before_the_minimum_stay(shares: list[float]) -> None:
    """A level that is left downwards has lasted for its minimum stay."""
    rig = Rig()
    for share in shares:
        rig.feed(share)
    since = 0.0
    for change in rig.governor.transitions:
        if change.after < change.before:
            assert change.at - since >= T.min_stay_s - 1e-9
        since = change.at


@given(st.lists(st.floats(0.01, 2.0), max_size=200))
def test_a_rise_always_acts(shares: list[float]) -> None:
    """No level is entered upwards without the cache being cleared."""
    governor = Governor(T, max_items=16, budget_bytes=BUDGET)
    now = 0.0
    for share in shares:
        now += 0.1
        used = int(share * BUDGET)
        decision = governor.observe(Sample(used, 0, 0, used), now)
        change = decision.transition
        if change is not None and change.after > change.before:
            assert decision.clear_cache
