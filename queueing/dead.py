"""The dead list: jobs that were given up on, to be looked at, tried again or dropped."""

from __future__ import annotations

from typing import Any

from queueing.errors import DecibatchError, UnknownJob
from queueing.faults import translated
from queueing.protocol import JobStatus, Queue, text
from queueing.scripts import run


class NotDead(DecibatchError):
    """There is such a job, but not on the dead list."""

    code = "not_dead"


class InputGone(DecibatchError):
    """The upload of the dead job has expired, so that it cannot be run again."""

    code = "input_gone"


class DeadList:
    """The dead jobs of a queue, over a ``redis.Redis`` that the caller owns.

    ``server`` names it in messages. Every method raises ServerUnavailable where it does not answer.
    """

    def __init__(self, redis: Any, queue: Queue, *, server: str) -> None:
        self._redis = redis
        self._queue = queue
        self._server = server

    def latest(self, limit: int = 100) -> list[JobStatus]:
        """The dead, latest first. Those whose time to live is over are taken off the list."""
        with translated(self._server):
            found = self._redis.zrevrange(self._queue.keys.dead, 0, limit - 1)
        return [status for job_id in found if (status := self._look(text(job_id))) is not None]

    def show(self, job_id: str) -> JobStatus:
        """One dead job, with its input and the failures of its attempts.

        Raises:
            UnknownJob: no such job.
            NotDead: it is in another state.
        """
        status = self._look(job_id)
        _check(job_id, "" if status is None else status.state.value, "dead")
        assert status is not None
        return status

    def retry(self, job_id: str) -> None:
        """Let a dead job wait again, its count of tries at zero and its deadline forgotten.

        Raises:
            UnknownJob: no such job.
            NotDead: it is in another state.
            InputGone: its upload has expired.
        """
        with translated(self._server):
            word = run(self._redis, self._queue.revive(job_id))
        if word == "input_gone":
            raise InputGone(f"the upload of job {job_id} has expired; submit it again")
        _check(job_id, word, "revived")

    def drop(self, job_id: str) -> None:
        """Forget a dead job and all that it left.

        Raises:
            UnknownJob: no such job.
            NotDead: it is in another state.
        """
        with translated(self._server):
            word = run(self._redis, self._queue.drop(job_id))
        _check(job_id, word, "dead")

    def _look(self, job_id: str) -> JobStatus | None:
        with translated(self._server):
            status = run(self._redis, self._queue.status(job_id))
            if status is None:
                self._redis.zrem(self._queue.keys.dead, job_id)
        return status


def _check(job_id: str, word: str, wanted: str) -> None:
    if not word:
        raise UnknownJob(f"there is no job {job_id}")
    if word != wanted:
        raise NotDead(f"job {job_id} is not dead but {word}")
