"""When work is asked for."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from queueing.protocol import Delivery, Queue, Taken
from worker.identity import Identity
from worker.intake import Intake
from worker.link import Link

ME = Identity("w1", 1, "value")


class Line:
    """A line to a server that gives, at each look, as many jobs as it is told."""

    def __init__(self, gives: list[int]) -> None:
        self.gives = gives
        self.looks = 0
        self.looked = asyncio.Event()

    async def wait_up(self) -> None:
        return

    async def run(self, call: Any) -> Taken:
        count = self.gives.pop(0) if self.gives else 0
        self.looks += 1
        self.looked.set()
        return Taken(tuple(Delivery(f"job-{n}", "stream", f"{n}-0", 1, b"") for n in range(count)))

    async def look(self) -> None:
        """Until there has been one more look."""
        await asyncio.wait_for(self.looked.wait(), 30)
        self.looked.clear()


def intake(line: Line, credits_left: int) -> Intake:
    return Intake(
        cast(Link, line),
        Queue(),
        ME,
        wire=1,
        credits_left=lambda: credits_left,
        streams=lambda: [("m", "normal")],
        on_taken=lambda taken: None,
    )


def test_credits_are_spent_where_work_was_left() -> None:
    """A look that took all it could is followed by another; one that emptied the streams is not, whatever ends."""

    async def work() -> None:
        line = Line([4, 2])
        one = intake(line, credits_left=4)
        running = asyncio.create_task(one.run())
        await line.look()
        while line.looks < 2:
            await line.look()
        one.credits_back()
        assert not one._poked.is_set()
        one.poke()
        await line.look()
        assert line.looks == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_credits_that_were_missing_are_used_when_they_come() -> None:
    """A worker that could not look for want of credits looks as soon as there are some."""

    async def work() -> None:
        line = Line([])
        one = intake(line, credits_left=0)
        assert not await one._take()
        assert line.looks == 0
        one.credits_back()
        assert one._poked.is_set()

    asyncio.run(work())
