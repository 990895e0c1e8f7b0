"""The script of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ops.bench.faults.plan import SHARES, Kind, Script, quotas, script


def made(seed: int, **changed: Any) -> Script:
    sizes = {"jobs": 500, "faults": 100, "seconds": 50.0, "workers": 3, "lease_s": 1.0, "clips": 4}
    return script(seed, **{**sizes, **changed})


def test_a_seed_makes_one_script() -> None:
    """The same seed makes the same script, another one another."""
    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize("faults", [0, 1, 7, 13, 100, 130])
def test_as_many_faults_as_were_asked_for(faults: int) -> None:
    """Rounding neither adds nor drops a fault."""
    assert len(quotas(faults)) == faults


def test_every_kind_has_its_share() -> None:
    """Of a hundred faults each kind has what its share says."""
    assert Counter(fault.kind for fault in made(3).faults) == SHARES
    assert sum(SHARES.values()) == 100


def test_faults_are_in_order_and_in_time() -> None:
    """Faults come one after the other, all of them while jobs are submitted."""
    times = [fault.at_s for fault in made(4).faults]
    assert times == sorted(times)
    assert times[-1] <= 50.0


def test_jobs_come_in_bursts_over_the_whole_run() -> None:
    """All jobs are submitted, several at once, from the start to near the end."""
    times = [one.at_s for one in made(5).submissions]
    assert len(times) == 500
    assert times[0] == 0.0
    assert times[-1] > 45.0
    assert max(Counter(times).values()) > 4


def test_stops_outlast_the_lease() -> None:
    """A worker that is stopped sleeps until its lease has lapsed."""
    stops = [fault.hold_s for fault in made(6, lease_s=2.0).faults if fault.kind is Kind.WORKER_STOPPED]
    assert stops
    assert min(stops) > 2.0
