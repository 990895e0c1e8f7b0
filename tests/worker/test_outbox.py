"""Events on their way: what is still worth sending."""

from __future__ import annotations

from typing import cast

from queueing.protocol import Delivery, Queue
from worker.link import Link
from worker.outbox import Outbox


def delivery(job_id: str) -> Delivery:
    return Delivery(job_id, "stream", "1-1", 1, b"")


def test_an_attempt_that_ends_takes_its_events_along() -> None:
    """What has not been sent of an attempt that ends is forgotten, and nothing else is."""
    outbox = Outbox(cast(Link, None), Queue())
    ends, stays = delivery("ends"), delivery("stays")
    for one in (ends, stays, ends):
        outbox.put(one, "progress", {"done": 0})
    outbox.withdraw(ends)
    assert [item[0] for item in outbox._pending] == [stays]
    assert outbox.dropped == 0
