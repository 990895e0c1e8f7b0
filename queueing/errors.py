"""What can go wrong for someone who enqueues.

::

    DecibatchError
    ├── InvalidJob             the job breaks the contract; nothing was written
    ├── QueueFull              refused at admission; .retry_after_s says when to try again
    ├── IdempotencyConflict    the key names another payload; .job_id is the job that has it
    ├── UnknownJob             no such job, or its result has expired
    ├── ServerUnavailable      Redis could not be reached or would not answer
    ├── ClientClosed           close() was called before or during the call
    ├── ResultTimeout          the job had not ended within the time given; it goes on
    └── JobNotDone             the job ended without a result; .error says why
        ├── JobFailed
        ├── JobDead
        ├── JobCancelled
        └── JobExpired
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queueing.job import ErrorInfo


class DecibatchError(Exception):
    """Root of everything that this package raises."""

    code = "error"


class InvalidJob(DecibatchError, ValueError):
    """The job breaks the contract. The message names the field; the values stay out of it."""

    code = "invalid_job"


class QueueFull(DecibatchError):
    """Admission was refused because too much waits already; nothing was written."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class IdempotencyConflict(DecibatchError):
    """The idempotency key is taken by a job with another payload."""

    code = "idempotency_conflict"

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class UnknownJob(DecibatchError, LookupError):
    """No such job: never submitted, or ended so long ago that its result has expired."""

    code = "unknown_job"


class ServerUnavailable(DecibatchError, ConnectionError):
    """Redis could not be reached, refused the connection, or would not take the command."""

    code = "server_unavailable"

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        """Whether the same call may well succeed in a moment, unchanged."""


class ClientClosed(DecibatchError):
    """The client was closed before or during the call."""

    code = "client_closed"


class ResultTimeout(DecibatchError, TimeoutError):
    """The job had not ended within the time given. It goes on; ask again."""

    code = "timeout"


class JobNotDone(DecibatchError):
    """The job ended, but not with a result."""

    code = "not_done"

    def __init__(self, job_id: str, error: ErrorInfo) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.job_id = job_id
        self.error = error


class JobFailed(JobNotDone):
    """A final error: trying the same input again cannot help."""

    code = "failed"


class JobDead(JobNotDone):
    """Every attempt failed; the job lies on the dead list."""

    code = "dead"


class JobCancelled(JobNotDone):
    code = "cancelled"


class JobExpired(JobNotDone):
    """The deadline passed before the job was done."""

    code = "expired"
