"""Limits are arithmetic on the device and the settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.limits import MAX_CACHE_BYTES, MIN_CACHE_BYTES, resolve

GIB = 1 << 30


@pytest.mark.parametrize(
    ("working_set_gib", "budget_gib"), [(10.7, 8.025), (21.3, 15.975), (47.5, 35.625), (107.5, 80.625)]
)
def test_a_quarter_of_the_device_is_left_to_others(working_set_gib: float, budget_gib: float) -> None:
    """Macs of 16, 32, 64 and 128 GB: three quarters of the recommended working set."""
    limits = resolve(int(working_set_gib * GIB))
    assert limits.budget == pytest.approx(budget_gib * GIB, abs=2)
    assert (limits.memory, limits.wired) == (limits.budget, 0)


def test_what_is_set_is_taken() -> None:
    """Budget, MLX's limits and the reserve are the settings', zero included."""
    limits = resolve(16 * GIB, budget=2 * GIB, memory=0, cache=5, wired=7)
    assert (limits.budget, limits.memory, limits.cache, limits.wired) == (2 * GIB, 0, 5, 7)
    assert resolve(16 * GIB, reserve=GIB).budget == 15 * GIB


@given(st.integers(0, 512 * GIB), st.integers(0, 512 * GIB))
def test_the_cache_is_a_small_part(total: int, reserve: int) -> None:
    """A cache that is derived lies between its bounds, and the budget is never negative."""
    limits = resolve(total, reserve=reserve)
    assert limits.budget >= 0
    assert MIN_CACHE_BYTES <= limits.cache <= MAX_CACHE_BYTES
