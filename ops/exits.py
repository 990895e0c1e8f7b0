"""Exit codes of the command line, and the one sentence that goes with each error."""

from __future__ import annotations

from enum import IntEnum

import redis

from ops.embedded import ServerNotFound, ServerNotStarted
from ops.settings import SettingsInvalid
from queueing.errors import DecibatchError, InvalidJob, ServerUnavailable, UnknownJob


class Exit(IntEnum):
    OK = 0
    UNHEALTHY = 1
    """No worker is ready, or a server, a worker or the demo could not run."""
    USAGE = 2
    FAILED = 3
    """Some job did not end in a result."""
    TIMEOUT = 4
    """Some job had not ended in time; outranks FAILED."""
    NO_SERVER = 5
    UNKNOWN_JOB = 6
    INTERRUPTED = 130


class Trouble(Exception):
    """Something that ends a command, told in one sentence."""

    def __init__(self, sentence: str, code: Exit = Exit.UNHEALTHY) -> None:
        super().__init__(sentence)
        self.code = code


TRANSLATED = (
    Trouble,
    DecibatchError,
    redis.RedisError,
    SettingsInvalid,
    ServerNotFound,
    ServerNotStarted,
)
"""What :func:`explain` knows. Anything else is a fault of ours, and is shown as one."""


def explain(exc: BaseException) -> tuple[Exit, str]:
    """The exit code and the sentence for one of :data:`TRANSLATED`."""
    match exc:
        case Trouble():
            return exc.code, str(exc)
        case UnknownJob():
            return Exit.UNKNOWN_JOB, str(exc)
        case ServerUnavailable():
            return Exit.NO_SERVER, str(exc)
        case redis.RedisError():
            return Exit.NO_SERVER, f"The Redis server could not be asked: {exc}"
        case SettingsInvalid() | InvalidJob():
            return Exit.USAGE, str(exc)
    return (Exit.FAILED if isinstance(exc, DecibatchError) else Exit.UNHEALTHY), str(exc)
