"""Webhooks that were given up: the ends of jobs that nobody took, to be looked at and told again."""

from __future__ import annotations

from typing import Any

from queueing.errors import DecibatchError, UnknownJob
from queueing.faults import translated
from queueing.joblist import JobList
from queueing.protocol import Queue
from queueing.scripts import run


class NotGivenUp(DecibatchError):
    """There is such a job, but its webhook has not been given up."""

    code = "not_given_up"


class Undelivered(JobList):
    """The jobs of a queue whose webhooks were given up."""

    def __init__(self, redis: Any, queue: Queue, *, server: str) -> None:
        super().__init__(redis, queue, queue.keys.undelivered, server=server)

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
