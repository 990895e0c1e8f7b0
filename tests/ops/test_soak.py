"""``decibatch bench soak``, small; its figures are measured by running it, not by a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.bench.soak import run as soaks
from ops.bench.soak.memory import Curve
from ops.bench.soak.report import Report, Server, is_static
from ops.bench.soak.run import Order, Soak
from queueing.keys import Keys

KEYS = Keys("main")
FLAT = Curve(tuple((float(n), 50_000_000) for n in range(40)))
GROWING = Curve(tuple((float(n), 50_000_000 + 200_000 * n) for n in range(40)))
LEAKING = Curve(tuple((float(n), 50_000_000 + 40_000 * n) for n in range(40)), jobs=10_000)
"""Grows by 1.6 MB, less than an allocator might; over so many jobs it is 160 bytes a job."""
GOOD = Report(
    jobs=1000,
    submitted=1000,
    ends={"done": 10, "cancelled": 990},
    still_waiting=0,
    server=Server(start=1_000_000, waiting=2_000_000, end=1_100_000),
    idle=FLAT,
    running=FLAT,
    keys_left=(KEYS.counts, KEYS.stream("m", "bulk"), KEYS.life("w"), KEYS.sweep),
    seconds={},
    version="",
    seed=1,
)


def test_two_thousand_jobs_wait_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job is admitted and ends, a waiting one takes under 1.5 KB, workers do not grow, and all is given back."""
    expire = Soak.expire

    def at_once(soak: Soak) -> None:
        # The events of a job stay for a minute after its end, and a test has no minute.
        for key in soak.redis.scan_iter(KEYS.events("*"), count=1000):
            soak.redis.expire(key, 1)
        expire(soak)

    monkeypatch.setattr(soaks.Soak, "expire", at_once)
    told = soaks.run(Order(jobs=2000, run=50, hold_s=1.0, ttl_s=1))
    assert told.failings == []
    assert told.ends["done"] >= 50
    assert sum(told.ends.values()) == 2000
    assert 300 < told.bytes_per_job < 1500
    assert len(told.idle.samples) > 4


def test_what_is_good_passes() -> None:
    """A report in which all holds has no failings."""
    assert GOOD.failings == []


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (replace(GOOD, submitted=999), "admitted"),
        (replace(GOOD, ends={"done": 10, "cancelled": 989}), "ended"),
        (replace(GOOD, still_waiting=1), "waiting"),
        (replace(GOOD, server=Server(1_000_000, 3_000_000, 1_100_000)), "1500 bytes"),
        (replace(GOOD, idle=GROWING), "idle"),
        (replace(GOOD, idle=Curve(())), "idle"),
        (replace(GOOD, running=GROWING), "working"),
        (replace(GOOD, running=LEAKING), "working"),
        (replace(GOOD, keys_left=(KEYS.job("j"),)), "keys"),
        (replace(GOOD, server=Server(1_000_000, 2_000_000, 4_000_000)), "given back"),
    ],
    ids=["refused", "lost", "counter", "bytes", "idle", "unread", "running", "leaking", "keys", "memory"],
)
def test_each_failing_is_told(bad: Report, word: str) -> None:
    """Whatever does not hold is named, so that a soak can fail."""
    assert any(word in sentence for sentence in bad.failings)


def test_a_slope_is_told_over_many_jobs_only() -> None:
    """Growth is reckoned to 10,000 jobs, and not where fewer than 5,000 were done."""
    assert LEAKING.as_row()["mb_per_10k_jobs"] == pytest.approx(1.56)
    assert replace(LEAKING, jobs=20_000).as_row()["mb_per_10k_jobs"] == pytest.approx(0.78)
    assert replace(LEAKING, jobs=20_000).flat
    assert replace(LEAKING, jobs=4_999).as_row()["mb_per_10k_jobs"] is None
    assert "mb_per_10k_jobs" not in FLAT.as_row()


@pytest.mark.parametrize(
    "key",
    [
        *(KEYS.job("j"), KEYS.inline("j"), KEYS.events("j"), KEYS.idempotency("t", "k")),
        *(KEYS.backlog("m", "l", "t"), KEYS.ring("m", "l"), KEYS.delayed, KEYS.deadlines, KEYS.lock("c")),
        "somebody:else",
    ],
)
def test_what_belongs_to_a_job_is_a_leak(key: str) -> None:
    """No key of a job, nor one that only waiting jobs need, may be left."""
    assert not is_static(key)
