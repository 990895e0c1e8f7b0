"""The names of all keys of one queue. One hash tag for all, so that Redis Cluster keeps a queue on one node.

The scripts build the same names from the root (``lua/common.lua``); a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "workers"
"""The consumer group of every stream."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of the queue ``name``."""

    name: str = "main"

    @property
    def root(self) -> str:
        """Routes every script call; never itself a key."""
        return f"decibatch:{{{self.name}}}"

    def job(self, job_id: str) -> str:
        """Hash: payload, state, attempt, owner, times, outcome."""
        return f"{self.root}:job:{job_id}"

    def inline(self, job_id: str) -> str:
        """String: the bytes of an inline input; gone when the job ends."""
        return f"{self.root}:inline:{job_id}"

    def events(self, job_id: str) -> str:
        """Stream, capped: progress, partial text, the end. None before the start; gone 60 s after the end."""
        return f"{self.root}:events:{job_id}"

    def bell(self, job_id: str) -> str:
        """Pub/sub channel: "event"; at the end the state, and where it is small a space and the outcome, JSON.

        It may be missed: the truth is in hash and stream.
        """
        return f"{self.root}:bell:{job_id}"

    def idempotency(self, tenant: str, key: str) -> str:
        """String "job-id digest"; lives as long as the job."""
        return f"{self.root}:idem:{tenant}:{key}"

    def stream(self, model: str, lane: str) -> str:
        """Stream: the short window of jobs that workers read."""
        return f"{self.root}:stream:{model}:{lane}"

    def backlog(self, model: str, lane: str, tenant: str) -> str:
        """List: job ids waiting, oldest first."""
        return f"{self.root}:backlog:{model}:{lane}:{tenant}"

    def ring(self, model: str, lane: str) -> str:
        """List: tenants that have a backlog, the next one first."""
        return f"{self.root}:ring:{model}:{lane}"

    @property
    def delayed(self) -> str:
        """Sorted set: job ids by the Unix millisecond at which they may start."""
        return f"{self.root}:delayed"

    @property
    def deadlines(self) -> str:
        """Sorted set: ids of jobs that have not ended by the Unix millisecond of their deadline."""
        return f"{self.root}:deadlines"

    @property
    def sweep(self) -> str:
        """Hash: how far the search for jobs that are nowhere has come, and whether it is called for."""
        return f"{self.root}:sweep"

    @property
    def models(self) -> str:
        """Set: models that jobs wait for."""
        return f"{self.root}:models"

    @property
    def served(self) -> str:
        """Hash: model -> Unix millisecond at which a worker last served it."""
        return f"{self.root}:served"

    @property
    def counts(self) -> str:
        """Hash: waiting, bytes (inline), and totals by final state."""
        return f"{self.root}:counts"

    @property
    def wake(self) -> str:
        """Stream, capped: an entry whenever a stream stops being empty."""
        return f"{self.root}:wake"

    @property
    def control(self) -> str:
        """Stream, capped: cancellations for whoever runs the job."""
        return f"{self.root}:control"

    @property
    def incidents(self) -> str:
        """Stream, capped: entries that were lost or made no sense, with what is left of them."""
        return f"{self.root}:incidents"

    @property
    def memory(self) -> str:
        """Stream, capped: what the memory governors of the workers decided, as JSON."""
        return f"{self.root}:memory"

    @property
    def dead(self) -> str:
        """Sorted set: ids of dead jobs by the Unix millisecond of their end."""
        return f"{self.root}:dead"

    def hooks(self, kind: str) -> str:
        """Sorted set: ids of jobs whose end the ``http`` or ``rq`` hook must be told, by when (Unix milliseconds)."""
        return f"{self.root}:hooks:{kind}"

    @property
    def undelivered(self) -> str:
        """Sorted set, capped: ids of jobs whose end nobody took, by the Unix millisecond at which it was given up."""
        return f"{self.root}:undelivered"

    @property
    def bridged(self) -> str:
        """Sorted set: ids of unfinished jobs that came from RQ, by the Unix millisecond of their submission."""
        return f"{self.root}:bridged"

    @property
    def bridge_lock(self) -> str:
        """String, expiring: the worker that looks after the jobs in ``bridged``. No consumer can have that name."""
        return self.lock("~bridge")

    @property
    def workers(self) -> str:
        """Set: consumer names of workers seen."""
        return f"{self.root}:workers"

    def worker(self, consumer: str) -> str:
        """String: a worker's health as JSON; expires when it stops saying so."""
        return f"{self.root}:worker:{consumer}"

    def lock(self, consumer: str) -> str:
        """String, expiring: who holds the consumer name."""
        return f"{self.root}:lock:{consumer}"

    def life(self, consumer: str) -> str:
        """Counter: incarnations of the consumer name. Expires 30 days after its last beat."""
        return f"{self.root}:life:{consumer}"
