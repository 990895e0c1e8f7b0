"""Moves over the ladder of bits are pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.protocol import Rung
from worker.governor import precision

RUNGS = (Rung(32, 1000, 0, 0), Rung(8, 300, 100, 250), Rung(4, 200, 60, 240))


def model(bits: int = 32, least: int = 8, at: float = 0.0) -> precision.ModelPrecision:
    return precision.loaded(RUNGS, bits, least, at)


def test_four_bits_only_where_allowed() -> None:
    """The ladder ends at the settings' least bits."""
    assert [rung.bits for rung in model(least=8).rungs] == [32, 8]
    assert [rung.bits for rung in model(least=4).rungs] == [32, 8, 4]


def test_the_move_that_frees_most_comes_first() -> None:
    """Of two models the one with more to give is quantized."""
    small = replace(model(), rungs=(Rung(32, 500, 0, 0), Rung(8, 150, 50, 0)))
    change = precision.down({"a": small, "b": model()}, 0, 5000, "why")
    assert change is not None
    assert (change.model, change.bits, change.reason) == ("b", 8, "why")


def test_at_the_lowest_rung_there_is_no_move() -> None:
    """Where every model is at its least bits nothing more can be done this way."""
    assert precision.down({"a": model(bits=8)}, 0, 5000, "why") is None


@pytest.mark.parametrize(
    ("bits", "held", "in_place"), [(32, 4900, True), (32, 4901, False), (8, 4761, False)]
)
def test_a_way_that_would_cross_is_a_restart(bits: int, held: int, in_place: bool) -> None:
    """The transient peak counts: from dense memory 100, from disk (8 to 4) 240."""
    change = precision.down({"a": model(bits=bits, least=4)}, held, 5000, "why")
    assert change is not None
    assert change.in_place is in_place


def up(now: float, held: int = 0, *, calm_s: float = 100.0, patience: int = 1, wanted: bool = False) -> bool:
    waiting = replace(model(bits=8), patience=patience)
    change = precision.up(
        {"a": waiting}, held, 5000, calm_s=calm_s, restore_after_s=30.0, now=now, wanted=wanted
    )
    assert change is None or change.bits == 32
    return change is not None


def test_bits_come_back_after_calm() -> None:
    """Thirty seconds after the last change and of calm, and not before."""
    assert not up(29.0)
    assert not up(100.0, calm_s=29.0)
    assert up(31.0, calm_s=31.0)


def test_bits_come_back_where_there_is_room() -> None:
    """The larger weights must stay under the ceiling together with the most that was held of late."""
    assert up(100.0, held=4300)
    assert not up(100.0, held=4301)


def test_who_fell_soon_waits_longer() -> None:
    """A model that is moved down soon after it went up waits twice as long, to a bound; after long it is forgiven."""
    fallen = model(at=100.0)
    for expected in (2, 4, 8, 16, 16):
        raised = precision.moved(replace(fallen, bits=8), 32, fallen.changed_at + 100, 30.0)
        fallen = precision.moved(raised, 8, raised.changed_at + 10, 30.0)
        assert fallen.patience == expected
    assert not up(100.0, patience=16)
    assert up(500.0, calm_s=500.0, patience=16)
    late = precision.moved(replace(fallen, bits=32), 8, fallen.changed_at + 1e5, 30.0)
    assert precision.moved(model(at=100.0), 8, 101.0, 30.0).patience == 1
    assert late.patience == 1


def test_a_job_that_asks_for_bits_does_not_wait_for_calm() -> None:
    """Where a chunk waits for more bits and there is room, it gets them at once."""
    assert up(1.0, calm_s=0.0, wanted=True)
    assert not up(1.0, held=4301, calm_s=0.0, wanted=True)
