"""Webhooks that were given up: the ends of jobs that nobody took, to be looked at and told again."""

from __future__ import annotations

from typing import Any

from queueing.errors import DecibatchError, UnknownJob
from queueing.faults import translated
from queueing.protocol import JobStatus, Queue, text
from queueing.scripts import run


class NotGivenUp(DecibatchError):
    """There is such a job, but its webhook has not been given up."""

    code = "not_given_up"


class Undelivered:
    """The webhooks of a queue that were given up, over a ``redis.Redis`` that the caller owns.

    ``server`` names it in messages. Every method raises ServerUnavailable where it does not answer.
    """

    def __init__(self, redis: Any, queue: Queue, *, server: str) -> None:
        self._redis = redis
        self._queue = queue
        self._server = server

    def latest(self, limit: int = 100) -> list[JobStatus]:
        """Their jobs, latest first. Those whose time to live is over are taken off the list."""
        found = []
        with translated(self._server):
            for member in self._redis.zrevrange(self._queue.keys.undelivered, 0, limit - 1):
                status = run(self._redis, self._queue.status(text(member)))
                if status is None:
                    self._redis.zrem(self._queue.keys.undelivered, member)
                else:
                    found.append(status)
        return found

    def again(self, job_id: str) -> None:
        """Let the end of a job be told again, its count of tries at zero.

        Raises:
            UnknownJob: no such job.
            NotGivenUp: it has no webhook, or one that was delivered or still will be.
        """
        with translated(self._server):
            word = run(self._redis, self._queue.hook_again(job_id))
        if not word:
            raise UnknownJob(f"there is no job {job_id}")
        if word != "again":
            raise NotGivenUp(f"the webhook of job {job_id} was not given up: {word}")
