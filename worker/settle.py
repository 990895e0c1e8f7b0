"""Outcomes, written: one script call each, insisted on until Redis has answered (invariants I1, I7)."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter

from queueing.job import ErrorInfo, Note
from queueing.protocol import Delivery, Queue
from worker.link import Link
from worker.outcome import Dead, Done, Dropped, Failed, HandBack, Outcome, Retry

log = logging.getLogger("decibatch.settle")


def backoff_s(tries: int, base_s: float, cap_s: float, jitter: float) -> float:
    """Exponential backoff with equal jitter; ``jitter`` lies in 0..1.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    # Beyond that it is the cap's turn anyway, and a float's end is near.
    ceiling: float = min(cap_s, base_s * 2.0 ** min(tries, 64))
    return ceiling / 2 + jitter * ceiling / 2


class Settler:
    """Writes outcomes. Holding the job until this returns is what bounds how many wait for Redis to come back."""

    def __init__(
        self,
        link: Link,
        queue: Queue,
        *,
        base_s: float,
        cap_s: float,
        version: str,
        rng: random.Random | None = None,
    ) -> None:
        self._link = link
        self._queue = queue
        self._base_s = base_s
        self._cap_s = cap_s
        self._version = version
        self.worker = ""
        """Consumer name, once it is known: stands in the notes of failures."""
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self.counts: Counter[str] = Counter()

    async def write(self, delivery: Delivery, outcome: Outcome, max_attempts: int) -> str:
        """Write one outcome. Returns the script's word: "ok", "stale", "gone" or the state the job already has."""
        queue = self._queue
        outcome = decided(delivery, outcome, max_attempts)
        match outcome:
            case Done(body=body):
                name = "done"
                call = queue.settle(delivery, "done", body)
            case Failed(error):
                name = "failed"
                call = queue.settle(delivery, "failed", error.model_dump_json())
            case Dead(error):
                name = "dead"
                call = queue.settle(
                    delivery, "dead", error.model_dump_json(), note=self._note(delivery, error)
                )
            case Retry(error, alone, crashed, counted):
                name = "retry"
                delay = backoff_s(delivery.tries, self._base_s, self._cap_s, self._rng.random())
                call = queue.settle(
                    delivery,
                    "retry",
                    error.model_dump_json(),
                    # A suspect that did nothing wrong itself need not wait.
                    delay_ms=int(delay * 1000) if counted else 0,
                    alone=alone,
                    crashed=crashed,
                    counted=counted,
                    note=self._note(delivery, error),
                )
            case HandBack():
                name = "handback"
                call = queue.settle(delivery, "release", "{}")
            case Dropped(reason):
                self.counts["dropped"] += 1
                return reason
        word = await self._link.insist(call, together=True)
        self.counts[name if word == "ok" else "refused"] += 1
        if word != "ok":
            # An outcome written just before the line broke is answered with the state that it made.
            log.info("outcome not written", extra={"job": delivery.job_id, "outcome": name, "word": word})
        return word

    def _note(self, delivery: Delivery, error: ErrorInfo) -> str:
        return Note(
            at_ms=int(time.time() * 1000),
            attempt=delivery.attempt,
            worker=self.worker,
            version=self._version,
            code=error.code,
            message=error.message,
        ).model_dump_json()


def decided(delivery: Delivery, outcome: Outcome, max_attempts: int) -> Outcome:
    """The outcome as it is written: a retry after the last attempt is the end."""
    if isinstance(outcome, Retry) and outcome.counted and delivery.tries + 1 >= max_attempts:
        return Dead(outcome.error)
    return outcome


def internal_error(exc: BaseException) -> ErrorInfo:
    """An error of ours, told without anything that may hold a transcript or a path."""
    return ErrorInfo(code="internal", message=f"the worker failed: {type(exc).__name__}", retryable=True)
