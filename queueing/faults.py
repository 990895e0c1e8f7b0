"""The one place where what redis-py raises becomes what this package raises."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as redis_errors

from queueing.errors import ServerUnavailable

FOREIGN = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)

_SENTENCES = {
    "OOM": "is out of memory and takes no more jobs; raise its maxmemory, or let what waits be worked off",
    "READONLY": "is a read-only replica; the URL must name the primary",
    "LOADING": "is still loading its data; try again shortly",
    "MISCONF": "takes no writes because it cannot save to disk",
    "MASTERDOWN": "is a replica that has lost its primary",
    "CLUSTERDOWN": "belongs to a cluster that is down",
    "MOVED": "is a cluster node that does not hold this queue; the URL must name the one that does",
    "NOREPLICAS": "takes no writes because too few of its replicas keep up (min-replicas-to-write)",
    "NOAUTH": "asks for a password",
    "WRONGPASS": "refused the user name or the password",
    "NOPERM": "does not allow this user to run the queue's scripts",
    "BUSY": "is busy with a long-running script",
}
_TRANSIENT = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"}


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raises ServerUnavailable, from the original, for whatever redis-py or the socket raises inside.

    ``where`` names the server in the message; it must not carry a password.
    """
    try:
        yield
    except ServerUnavailable:
        raise
    except FOREIGN as exc:
        raise _translate(exc, where) from exc


def _translate(exc: Exception, where: str) -> ServerUnavailable:
    # What goes wrong while connecting comes wrapped, in one client and not in the other.
    codes = [_code(inner) for inner in _chain(exc)]
    code = next((code for code in codes if code in _SENTENCES), codes[0])
    if code in _SENTENCES:
        return ServerUnavailable(f"Redis at {where} {_SENTENCES[code]}", transient=code in _TRANSIENT)
    if isinstance(exc, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return ServerUnavailable(f"Redis at {where} cannot be reached{_reason(exc)}", transient=True)
    # A server's own words may repeat the arguments of a command; its error code does not.
    return ServerUnavailable(f"Redis at {where} refused the command ({code or type(exc).__name__})")


_CODES: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.OutOfMemoryError, "OOM"),
    (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.NoPermissionError, "NOPERM"),
    (redis_errors.AuthorizationError, "NOPERM"),
    (redis_errors.AuthenticationError, "WRONGPASS"),
    (redis_errors.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.MovedError, "MOVED"),
)


def _code(exc: BaseException) -> str:
    for kind, code in _CODES:
        if isinstance(exc, kind):
            return code
    if isinstance(exc, redis_errors.ResponseError):
        word = str(exc).split(" ", 1)[0].rstrip(":")
        return word if word.isalpha() and word.isupper() else ""
    return ""


def _reason(exc: BaseException) -> str:
    for inner in _chain(exc):
        if isinstance(inner, TimeoutError | redis_errors.TimeoutError):
            return ": it does not answer in time"
        if isinstance(inner, OSError) and inner.errno in errno.errorcode:
            return f": {os.strerror(inner.errno or 0).lower()}"
    return ""


def _chain(exc: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = exc
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
