"""A list of jobs that somebody should look at, kept in a sorted set by the time at which they came on it."""

from __future__ import annotations

from typing import Any

from queueing.faults import translated
from queueing.protocol import JobStatus, Queue, text
from queueing.scripts import run


class JobList:
    """The jobs under *key*, over a ``redis.Redis`` that the caller owns.

    ``server`` names it in messages. Every method raises ServerUnavailable where it does not answer.
    """

    def __init__(self, redis: Any, queue: Queue, key: str, *, server: str) -> None:
        self._redis = redis
        self._queue = queue
        self._key = key
        self._server = server

    def latest(self, limit: int = 100) -> list[JobStatus]:
        """The jobs, latest first. Those whose time to live is over are taken off the list."""
        with translated(self._server):
            found = self._redis.zrevrange(self._key, 0, limit - 1)
        return [status for job_id in found if (status := self._look(text(job_id))) is not None]

    def _look(self, job_id: str) -> JobStatus | None:
        with translated(self._server):
            status = run(self._redis, self._queue.status(job_id))
            if status is None:
                self._redis.zrem(self._key, job_id)
        return status
