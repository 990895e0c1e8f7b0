"""A job that is delivered again to the worker that still holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from queueing.keys import Keys
from queueing.protocol import Delivery, Queue
from worker.config import LeaseConfig
from worker.flow import JobFlow
from worker.held import HeldJob, Ledger
from worker.identity import Identity
from worker.leases import Leases
from worker.outcome import Outcome

JOB = "0123456789abcdef"


def delivery(attempt: int, entry: str = "1-1") -> Delivery:
    """Its payload is no job, so that an attempt ends without media or engine."""
    return Delivery(JOB, "stream", entry, attempt, b"not a job")


class SlowSettler:
    """Writes nothing until told so."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write(self, delivery: Delivery, outcome: Outcome, max_attempts: int) -> str:
        self.begun.set()
        await self.go_on.wait()
        self.written.append(delivery.attempt)
        return "ok"


class Flow:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.settler = SlowSettler()
        self.held_when_told: list[int] = []
        outbox = SimpleNamespace(withdraw=lambda delivery: None)
        parts: Any = SimpleNamespace(ledger=self.ledger, settler=self.settler, outbox=outbox)
        self.flow = JobFlow(
            parts,
            serve=("m",),
            poison_after=2,
            worker="w1",
            version="0",
            max_result_bytes=1,
            on_settled=lambda: self.held_when_told.append(len(self.ledger)),
            on_deadline=lambda: None,
        )

    async def finish(self) -> None:
        self.settler.go_on.set()
        while (held := self.ledger.get(JOB)) is not None:
            assert held.task is not None
            await held.task


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_an_older_delivery_changes_nothing() -> None:
    """Where the reply of a take is overtaken by that of a resume, the newer attempt stays the one that we hold."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(2))
        flow.flow.accept(delivery(1))
        held = flow.ledger.get(JOB)
        assert held is not None
        assert held.delivery.attempt == 2
        await flow.finish()

    run(work())


def test_a_newer_delivery_renews_the_attempt() -> None:
    """What is being worked on goes on under the attempt that came last."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(1))
        flow.flow.accept(delivery(2))
        await flow.finish()
        assert flow.settler.written == [2]

    run(work())


def test_a_delivery_that_comes_while_its_job_is_settled_is_begun_with_afterwards() -> None:
    """A retry that we take again before the answer to our own settling arrives is not dropped with it."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(1))
        await flow.settler.begun.wait()
        flow.flow.accept(delivery(2, "2-1"))
        assert flow.ledger.entries == ["1-1", "2-1"]
        await flow.finish()
        assert flow.settler.written == [1, 2]

    run(work())


def test_nobody_hears_of_an_empty_ledger_while_a_delivery_follows() -> None:
    """A worker that drains does not take the end of the older attempt for the end of its work."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(1))
        await flow.settler.begun.wait()
        flow.flow.accept(delivery(2, "2-1"))
        await flow.finish()
        assert flow.held_when_told == [1, 0]

    run(work())


def test_a_delivery_that_comes_while_its_job_is_given_up_is_begun_with_afterwards() -> None:
    """A lost lease that comes back to us as a new attempt is worked on."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(1))
        held = flow.ledger.get(JOB)
        assert held is not None
        flow.flow.abandon(held, "handback")
        flow.flow.accept(delivery(2, "2-1"))
        await flow.finish()
        assert flow.settler.written == [1, 2]

    run(work())


def test_a_job_given_up_before_its_first_step_leaves_our_hands() -> None:
    """What is abandoned in the moment of its arrival is handed back, and does not stay on the books."""

    async def work() -> None:
        flow = Flow()
        flow.flow.accept(delivery(1))
        held = flow.ledger.get(JOB)
        assert held is not None
        flow.flow.abandon(held, "handback")
        await flow.finish()
        assert flow.settler.written == [1]
        assert len(flow.ledger) == 0

    run(work())


def test_what_is_said_of_an_older_attempt_does_not_end_a_newer_one() -> None:
    """The answer to a renewal holds for the attempt that was asked about."""
    lost: list[HeldJob] = []
    ledger = Ledger()
    held = HeldJob(delivery(1), 0.0)
    ledger.add(held)

    class Link:
        async def run(self, call: object) -> tuple[str, ...]:
            held.delivery = delivery(2)
            return ("lost",)

    link: Any = Link()
    leases = Leases(
        link,
        Queue(Keys("main")),
        Identity("w1", 1, "v"),
        ledger,
        LeaseConfig(),
        wire=1,
        progressing=lambda: True,
        on_lost=lambda one, _: lost.append(one),
        on_taken=lambda _: None,
        streams=list,
        credits_left=lambda: 1,
    )
    run(leases.renew())
    assert lost == []
