"""``python -m ops.bench.soak.hands submit|cancel SEED FIRST END TTL MODEL CLIP...``: one of several clients of a soak.

The server's URL is read from :data:`URL_VARIABLE`. Prints how many jobs were admitted, or cancelled.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ops import stack
from queueing.client import Client
from queueing.errors import UnknownJob
from queueing.flows import JobHandle, Submission
from queueing.job import LANES, State
from queueing.protocol import Admission

URL_VARIABLE = "DECIBATCH_SOAK_URL"
TENANTS = 50
BATCH = 1000
WITH_DEADLINE = 4
"""One job in so many has a deadline, of a day."""
TOGETHER = 4
"""Cancellations under way at once."""


def job_id(seed: int, number: int) -> str:
    """The same for whoever submits and whoever cancels."""
    return f"soak-{seed}-{number:08d}"


def submissions(
    seed: int, first: int, end: int, ttl_s: int, clips: Sequence[str]
) -> Iterator[list[Submission]]:
    """Jobs of several tenants and lanes, in batches."""
    rng = random.Random(f"{seed}/{first}")  # noqa: S311 - a script, not a secret
    for start in range(first, end, BATCH):
        yield [
            Submission(
                input=clips[number % len(clips)],
                lane=rng.choice(LANES),
                tenant=f"tenant-{rng.randrange(TENANTS)}",
                result_ttl_s=ttl_s,
                deadline_s=86_400.0 if number % WITH_DEADLINE == 0 else None,
                job_id=job_id(seed, number),
            )
            for number in range(start, min(end, start + BATCH))
        ]


def submit(client: Client, batches: Iterator[list[Submission]]) -> int:
    """How many were admitted."""
    return sum(
        isinstance(answer, JobHandle) and not answer.existed
        for batch in batches
        for answer in client.submit_many(batch)
    )


def cancel(client: Client, seed: int, first: int, end: int) -> int:
    """How many ended by it. One that was run may be gone already, with its result."""

    def one(number: int) -> bool:
        try:
            return client.cancel(job_id(seed, number)) is State.CANCELLED
        except UnknownJob:
            return False

    with ThreadPoolExecutor(TOGETHER) as pool:
        return sum(
            sum(pool.map(one, range(start, min(end, start + BATCH)))) for start in range(first, end, BATCH)
        )


def main() -> None:
    what = sys.argv[1]
    seed, first, end, ttl_s = (int(word) for word in sys.argv[2:6])
    admission = Admission(max_waiting=1 << 40)
    with Client(
        os.environ[URL_VARIABLE], queue=stack.QUEUE, model=sys.argv[6], admission=admission, patience_s=60
    ) as client:
        if what == "submit":
            print(submit(client, submissions(seed, first, end, ttl_s, sys.argv[7:])))
        else:
            print(cancel(client, seed, first, end))


if __name__ == "__main__":
    main()
