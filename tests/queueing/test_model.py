"""The scripts against a model of what they may do, over random histories."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queueing.connect import connect
from queueing.protocol import Delivery
from queueing.scripts import run
from tests.support.bench import FUTURE, MODEL, PAST, STREAMS, Bench, result_json
from tests.support.redis_server import RedisServer, servers

pytestmark = pytest.mark.parametrize("redis_server", list(servers()), indirect=True, scope="session")

WINDOW = 16
TENANTS = ("a", "b")
LANES = ("interactive", "bulk")
CONSUMERS = ("w1", "w2")
ENDS = ("done", "failed", "dead")
LEASE_MS = 30_000


@dataclass
class Modelled:
    """What a job must look like."""

    lane: str
    tenant: str
    state: str = "waiting"
    delayed: bool = False
    attempt: int = 0
    tries: int = 0
    holder: str = ""
    entry: str = ""
    aged: bool = False
    outcome: str = ""

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")


def machine(url: str) -> type[RuleBasedStateMachine]:
    """A state machine over the server at that URL."""

    class Histories(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.bench = Bench(connect(url, max_connections=1))
            self.jobs: dict[str, Modelled] = {}
            self.deliveries: list[Delivery] = []

        @initialize()
        def empty(self) -> None:
            self.bench.redis.flushall()

        def teardown(self) -> None:
            try:
                self.everything_ends()
            finally:
                self.bench.redis.close()

        # --- what may happen ---

        @rule(
            n=st.sampled_from([1, 2, 25]),
            lane=st.sampled_from(LANES),
            tenant=st.sampled_from(TENANTS),
            delayed=st.booleans(),
        )
        def submit(self, n: int, lane: str, tenant: str, delayed: bool) -> None:
            for _ in range(n):
                job_id = self.bench.add(
                    lane=lane, tenant=tenant, deadline_ms=FUTURE, not_before_ms=FUTURE if delayed else None
                )
                self.jobs[job_id] = Modelled(lane, tenant, delayed=delayed)

        @rule(n=st.integers(0, 20), consumer=st.sampled_from(CONSUMERS))
        def take(self, n: int, consumer: str) -> None:
            ready = sum(job.state == "waiting" and not job.delayed for job in self.jobs.values())
            taken = self.bench.take(n, consumer)
            assert (taken.lost, taken.newer, taken.junk) == ((), (), 0)
            assert len(taken.deliveries) == min(n, ready)
            for d in taken.deliveries:
                assert self.jobs[d.job_id].state == "waiting"
                assert not self.jobs[d.job_id].delayed
                self.delivered(d, consumer)

        @precondition(lambda self: any(job.delayed for job in self.jobs.values()))
        @rule(data=st.data())
        def becomes_due(self, data: st.DataObject) -> None:
            job_id = data.draw(st.sampled_from([i for i, job in self.jobs.items() if job.delayed]))
            self.bench.redis.zadd(self.bench.keys.delayed, {job_id: 0}, xx=True)
            # Whoever takes next moves it on; a take of nothing does, too.
            self.bench.take(0)
            self.jobs[job_id].delayed = False

        @precondition(lambda self: self.deliveries)
        @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
        def renew(self, data: st.DataObject, consumer: str) -> None:
            d = data.draw(st.sampled_from(self.deliveries))
            job = self.jobs[d.job_id]
            if job.ended:
                expected = job.state
            elif self.current(d) and job.holder == consumer:
                expected = "ok"
                job.aged = False
            else:
                expected = "lost"
            assert self.bench.renew(d, consumer=consumer) == (expected,)

        @precondition(lambda self: self.deliveries)
        @rule(data=st.data(), outcome=st.sampled_from([*ENDS, "retry", "release"]), delayed=st.booleans())
        def settle(self, data: st.DataObject, outcome: str, delayed: bool) -> None:
            d = data.draw(st.sampled_from(self.deliveries))
            job = self.jobs[d.job_id]
            body = result_json(f"{d.attempt}") if outcome == "done" else None
            reply = self.bench.settle(d, outcome, body, delay_ms=3_600_000 if delayed else 0)
            if job.ended:
                assert reply == job.state
            elif outcome == "done":
                assert reply == "ok"
                self.ends(d.job_id, "done")
            elif not self.current(d):
                assert reply == "stale"
            else:
                assert reply == "ok"
                job.tries += outcome != "release"
                if outcome in ENDS:
                    self.ends(d.job_id, outcome)
                else:
                    job.state, job.holder, job.entry, job.delayed = "waiting", "", "", delayed

        @precondition(lambda self: self.jobs)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            job_id = data.draw(st.sampled_from(list(self.jobs)))
            if not self.jobs[job_id].ended:
                self.ends(job_id, "cancelled")
            assert self.bench.cancel(job_id) == self.jobs[job_id].state

        @precondition(lambda self: self.jobs)
        @rule(data=st.data())
        def deadline_passes(self, data: st.DataObject) -> None:
            job_id = data.draw(st.sampled_from(list(self.jobs)))
            self.bench.redis.hset(self.bench.keys.job(job_id), "deadline", PAST)
            if not self.jobs[job_id].ended:
                self.ends(job_id, "expired")
            status = self.bench.status(job_id)
            assert status is not None
            assert status.state == self.jobs[job_id].state

        @precondition(lambda self: any(job.state == "running" for job in self.jobs.values()))
        @rule(data=st.data())
        def lease_lapses(self, data: st.DataObject) -> None:
            self.lapse(data)

        def lapse(self, data: st.DataObject) -> None:
            running = [d for d in self.deliveries if self.current(d)]
            d = data.draw(st.sampled_from(running))
            self.bench.age(d, self.jobs[d.job_id].holder, LEASE_MS * 2)
            self.jobs[d.job_id].aged = True

        @precondition(lambda self: any(job.state == "running" for job in self.jobs.values()))
        @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
        def lapses_and_is_looked_for(self, data: st.DataObject, consumer: str) -> None:
            self.lapse(data)
            self.reclaim(consumer, 5)

        @rule(consumer=st.sampled_from(CONSUMERS), n=st.integers(1, 5))
        def reclaims(self, consumer: str, n: int) -> None:
            self.reclaim(consumer, n)

        def reclaim(self, consumer: str, n: int) -> None:
            theirs = {i for i, job in self.jobs.items() if job.aged and job.holder not in ("", consumer)}
            held = [job.entry for job in self.jobs.values() if job.holder == consumer]
            got = self.bench.reclaim(consumer, n, LEASE_MS, held)
            assert len(got.deliveries) == min(n, len(theirs))
            for d in got.deliveries:
                assert d.job_id in theirs
                self.delivered(d, consumer)

        @rule(consumer=st.sampled_from(CONSUMERS), holds=st.booleans())
        def resume(self, consumer: str, holds: bool) -> None:
            mine = {job.entry for job in self.jobs.values() if job.holder == consumer}
            held = sorted(mine)[::2] if holds else []
            got = self.bench.resume(consumer, held)
            assert {d.entry for d in got.deliveries} == mine - set(held)
            for d in got.deliveries:
                self.delivered(d, consumer)

        @rule()
        def sweeps(self) -> None:
            assert self.sweep() == set()

        @rule(lane=st.sampled_from(LANES))
        def loses_a_stream(self, lane: str) -> None:
            keys = self.bench.keys
            entries = self.bench.redis.xrange(keys.stream(MODEL, lane))
            self.bench.redis.delete(keys.stream(MODEL, lane))
            expected = {fields[b"job"].decode() for _, fields in entries}
            assert self.sweep() == expected
            for job_id in expected:
                job = self.jobs[job_id]
                job.state, job.holder, job.entry, job.aged = "waiting", "", "", False

        def sweep(self) -> set[str]:
            """A pass over everything, begun anywhere; which jobs were nowhere."""
            self.bench.redis.hset(self.bench.keys.sweep, "passes", 2)
            found: list[str] = []
            while True:
                swept = run(self.bench.redis, self.bench.queue.sweep(keys=20, pause_ms=0))
                found += swept.requeued
                if not swept.more:
                    assert len(found) == len(set(found))
                    return set(found)

        # --- the model's own ---

        def current(self, d: Delivery) -> bool:
            job = self.jobs[d.job_id]
            return job.state == "running" and job.attempt == d.attempt

        def delivered(self, d: Delivery, consumer: str) -> None:
            job = self.jobs[d.job_id]
            job.state, job.holder, job.entry, job.aged = "running", consumer, d.entry, False
            job.attempt += 1
            assert (d.attempt, d.tries) == (job.attempt, job.tries)
            self.deliveries.append(d)

        def ends(self, job_id: str, state: str) -> None:
            job = self.jobs[job_id]
            job.state, job.holder, job.entry, job.delayed, job.aged = state, "", "", False, False

        def everything_ends(self) -> None:
            """Nothing that was admitted is lost: what waits can be taken, and ends (I5)."""
            delayed = self.bench.redis.zrange(self.bench.keys.delayed, 0, -1)
            for job_id in delayed:
                self.bench.redis.zadd(self.bench.keys.delayed, {job_id: 0})
            self.bench.take(0)
            taken = {d.job_id: d for d in self.bench.take(len(self.jobs) + 1).deliveries}
            assert taken.keys() == {i for i, job in self.jobs.items() if job.state == "waiting"}
            for job_id, job in self.jobs.items():
                if job.state == "running":
                    self.bench.cancel(job_id)
                elif job_id in taken:
                    assert self.bench.settle(taken[job_id], "done") == "ok"
            assert self.bench.counter("waiting") == 0
            assert not self.bench.redis.exists(self.bench.keys.deadlines)
            for stream in STREAMS:
                assert self.bench.redis.xlen(self.bench.keys.stream(*stream)) == 0
            for tenant in TENANTS:
                for lane in LANES:
                    assert not self.bench.redis.exists(self.bench.keys.backlog(MODEL, lane, tenant))

        # --- what must always hold ---

        @invariant()
        def waiting_is_counted(self) -> None:
            waiting = sum(job.state == "waiting" for job in self.jobs.values())
            assert self.bench.counter("waiting") == waiting

        @invariant()
        def jobs_look_like_the_model(self) -> None:
            with self.bench.redis.pipeline(transaction=False) as pipe:
                for job_id in self.jobs:
                    pipe.hmget(
                        self.bench.keys.job(job_id),
                        "state",
                        "attempt",
                        "tries",
                        "result",
                        "error",
                        "finished",
                    )
                rows = pipe.execute()
            for job, row in zip(self.jobs.values(), rows, strict=True):
                assert row[0].decode() == job.state
                assert int(row[1] or 0) == job.attempt
                assert int(row[2] or 0) == job.tries
                if job.ended:
                    outcome = repr(row[3:])
                    assert job.outcome in ("", outcome)
                    job.outcome = outcome

        @invariant()
        def every_job_is_in_one_place(self) -> None:
            bench, keys = self.bench, self.bench.keys
            delayed = [raw.decode() for raw in bench.redis.zrange(keys.delayed, 0, -1)]
            assert sorted(delayed) == sorted(i for i, job in self.jobs.items() if job.delayed)
            places = list(delayed)
            for lane in LANES:
                stream = keys.stream(MODEL, lane)
                entries = {
                    entry.decode(): fields[b"job"].decode() for entry, fields in bench.redis.xrange(stream)
                }
                places += entries.values()
                pending: dict[str, str] = {}
                with contextlib.suppress(Exception):  # there is no group before the first job
                    pending = bench.pending(lane)
                running = {
                    job.entry: job.holder
                    for job in self.jobs.values()
                    if job.state == "running" and job.lane == lane
                }
                assert pending == running
                assert len(entries) - len(pending) <= WINDOW
                ring = [raw.decode() for raw in bench.redis.lrange(keys.ring(MODEL, lane), 0, -1)]
                backlogs = {t: bench.redis.lrange(keys.backlog(MODEL, lane, t), 0, -1) for t in TENANTS}
                assert sorted(ring) == sorted(t for t, ids in backlogs.items() if ids)
                if ring:
                    assert len(entries) - len(pending) == WINDOW
                places += [raw.decode() for ids in backlogs.values() for raw in ids]
            assert sorted(places) == sorted(i for i, job in self.jobs.items() if not job.ended)

    return Histories


def test_histories(redis_server: RedisServer, redis_url: str) -> None:
    """Whatever happens in whatever order, every job is in one place, ends once, and is never lost."""
    run_state_machine_as_test(
        machine(redis_url),
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],  # shrinking takes minutes; a history of forty steps can be read
            suppress_health_check=list(HealthCheck),
        ),
    )
    with redis_server.connect() as client:
        client.flushall()
