"""The dead list: jobs that were given up on, to be looked at, tried again or dropped."""

from __future__ import annotations

from typing import Any

from queueing.errors import DecibatchError, UnknownJob
from queueing.faults import translated
from queueing.joblist import JobList
from queueing.protocol import JobStatus, Queue
from queueing.scripts import run


class NotDead(DecibatchError):
    """There is such a job, but not on the dead list."""

    code = "not_dead"


class InputGone(DecibatchError):
    """The upload of the dead job has expired, so that it cannot be run again."""

    code = "input_gone"


class DeadList(JobList):
    """The dead jobs of a queue."""

    def __init__(self, redis: Any, queue: Queue, *, server: str) -> None:
        super().__init__(redis, queue, queue.keys.dead, server=server)

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


def _check(job_id: str, word: str, wanted: str) -> None:
    if not word:
        raise UnknownJob(f"there is no job {job_id}")
    if word != wanted:
        raise NotDead(f"job {job_id} is not dead but {word}")
