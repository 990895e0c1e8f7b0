"""Levels are a pure state machine over memory readings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import Sample
from engine.system import CRITICAL, NORMAL, WARN
from worker.governor import Governor, Level, Thresholds, danger_bytes
from worker.governor.levels import budget_under_pressure

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
    assert rig.feed(1.05) is Level.OPEN
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


def test_danger_is_the_greater_of_two() -> None:
    """What MLX holds with its cache, and what the process is: the greater counts; a peak that is over does not."""
    assert danger_bytes(Sample(active=5, cache=6, peak=3, footprint=1)) == 11
    assert danger_bytes(Sample(active=5, cache=0, peak=30, footprint=1)) == 5
    assert danger_bytes(Sample(active=5, cache=0, peak=3, footprint=40)) == 40
    assert danger_bytes(Sample(active=0, cache=0, peak=0, footprint=0)) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.integers(1, 30)), max_size=20))
def test_pressure_that_ends_is_forgotten(history: list[tuple[float, int]]) -> None:
    """After any history, calm brings back the open level and the full batch: nothing latches."""
    rig = Rig()
    for share, times in history:
        rig.feed(share, times)
    rig.feed(0.2, 600)
    assert rig.governor.level is Level.OPEN
    assert rig.governor.max_items(idle=False) == 16


@settings(deadline=None)
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


@settings(deadline=None)
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


def test_the_emergency_line_needs_no_second_sample() -> None:
    """One reading at 110 % pauses at once: what comes next may be the system's killer."""
    rig = Rig()
    assert rig.feed(1.10) is Level.PAUSE
    assert rig.cleared == 1


def test_entering_pause_hands_back() -> None:
    """What has not started goes back to Redis when pause begins, and not again while it lasts."""
    governor = Governor(T, max_items=16, budget_bytes=BUDGET)
    decisions = [governor.observe(Sample(1050, 0, 0, 1050), 0.1 * i) for i in range(20)]
    assert [decision.hand_back for decision in decisions].count(True) == 1


def test_a_transition_says_why() -> None:
    """The reason names the binding reading with its bytes and the line that it crossed."""
    governor = Governor(T, max_items=16, budget_bytes=100 << 20)
    for i in range(2):
        governor.observe(Sample(40 << 20, 45 << 20, 0, 60 << 20), 0.1 * i)
    assert governor.transitions[-1].reason == (
        "active 40 MiB + cache 45 MiB is 85% of the budget, at or above the 80% line"
    )


@pytest.mark.parametrize(("pressure", "share"), [(0, 1.0), (NORMAL, 1.0), (WARN, 0.9), (CRITICAL, 0.75)])
def test_pressure_of_the_machine_lowers_the_budget(pressure: int, share: float) -> None:
    """Where the whole machine is short of memory the budget shrinks; unknown is no pressure."""
    assert budget_under_pressure(1000, pressure) == 1000 * share


SHARES = st.lists(st.floats(0.01, 2.0), max_size=200)


@settings(deadline=None)
@given(SHARES)
def test_a_level_that_holds_work_back_reclaims(shares: list[float]) -> None:
    """While work is held back the cache is released at least once in every two intervals: no guard can wedge on it."""
    governor = Governor(T, max_items=16, budget_bytes=BUDGET)
    now = last = 0.0
    for share in shares:
        now += 0.25
        used = int(share * BUDGET)
        before = governor.level
        decision = governor.observe(Sample(used, 0, 0, used), now)
        if decision.clear_cache or before is Level.OPEN:
            last = now
        assert now - last < 2 * T.reclaim_every_s


@settings(deadline=None)
@given(SHARES)
def test_nothing_wedges(shares: list[float]) -> None:
    """At any level, with nothing running, at least one row may pass."""
    rig = Rig()
    for share in shares:
        rig.feed(share)
        assert rig.governor.max_items(idle=True) >= 1


@settings(deadline=None)
@given(SHARES)
def test_no_level_flaps(shares: list[float]) -> None:
    """Two changes of opposite directions never lie closer together than the minimum stay, unless memory rose again."""
    rig = Rig()
    for share in shares:
        rig.feed(share, every=0.05)
    changes = list(rig.governor.transitions)
    for first, second in itertools.pairwise(changes):
        if first.after > first.before and second.after < second.before:
            assert second.at - first.at >= T.min_stay_s - 1e-9
        if second.after > second.before:
            assert second.share >= T.enter(second.after) - 1e-9


@settings(deadline=None)
@given(SHARES, st.floats(0.01, 2.0))
def test_unknown_readings_change_nothing(shares: list[float], last: float) -> None:
    """Zeros in between leave the same level as no reading at all, whatever came before."""
    plain, mixed = Rig(), Rig()
    for share in [*shares, last]:
        plain.feed(share)
        mixed.feed(share)
        held = mixed.governor.level
        mixed.governor.observe(Sample(0, 0, 0, 0), mixed.now)
        assert mixed.governor.level is held
    assert mixed.governor.level is plain.governor.level
