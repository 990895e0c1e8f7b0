"""How long a job waits before it is tried again."""

from __future__ import annotations

import pytest

from worker.settle import backoff_s


@pytest.mark.parametrize(("tries", "ceiling"), [(0, 2.0), (1, 4.0), (2, 8.0), (5, 60.0), (2000, 60.0)])
def test_pauses_double_up_to_a_cap(tries: int, ceiling: float) -> None:
    """The pause lies between a half of its ceiling and all of it, by chance, and the ceiling doubles up to the cap."""
    assert backoff_s(tries, 2.0, 60.0, 0.0) == ceiling / 2
    assert backoff_s(tries, 2.0, 60.0, 1.0) == ceiling
    assert backoff_s(tries, 2.0, 60.0, 0.5) == 0.75 * ceiling
