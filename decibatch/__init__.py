"""Decibatch: speech to text, from a message queue, on Apple MLX.

::

    from decibatch import Client

    with Client() as client:
        job = client.submit("meeting.m4a")
        print(client.result(job, timeout=600).text)

This is the only documented import. Names are loaded when they are first used, so that importing the
package costs a web application next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queueing.client import AsyncClient, Client
    from queueing.errors import (
        ClientClosed,
        DecibatchError,
        IdempotencyConflict,
        InvalidJob,
        JobCancelled,
        JobDead,
        JobExpired,
        JobFailed,
        JobNotDone,
        QueueFull,
        ResultTimeout,
        ServerUnavailable,
        UnknownJob,
    )
    from queueing.events import Event, Progress
    from queueing.flows import JobHandle, Submission
    from queueing.job import ErrorInfo, Lane, Result, Segment, State, Timings, Word
    from queueing.protocol import Admission, JobStatus
    from queueing.webhook import InvalidWebhook, Notice, verify_webhook

    __version__: str

_HOMES = {
    "queueing.client": ("AsyncClient", "Client"),
    "queueing.errors": (
        "ClientClosed",
        "DecibatchError",
        "IdempotencyConflict",
        "InvalidJob",
        "JobCancelled",
        "JobDead",
        "JobExpired",
        "JobFailed",
        "JobNotDone",
        "QueueFull",
        "ResultTimeout",
        "ServerUnavailable",
        "UnknownJob",
    ),
    "queueing.events": ("Event", "Progress"),
    "queueing.flows": ("JobHandle", "Submission"),
    "queueing.job": ("ErrorInfo", "Lane", "Result", "Segment", "State", "Timings", "Word"),
    "queueing.protocol": ("Admission", "JobStatus"),
    "queueing.webhook": ("InvalidWebhook", "Notice", "verify_webhook"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Admission",
    "AsyncClient",
    "Client",
    "ClientClosed",
    "DecibatchError",
    "ErrorInfo",
    "Event",
    "IdempotencyConflict",
    "InvalidJob",
    "InvalidWebhook",
    "JobCancelled",
    "JobDead",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobNotDone",
    "JobStatus",
    "Lane",
    "Notice",
    "Progress",
    "QueueFull",
    "Result",
    "ResultTimeout",
    "Segment",
    "ServerUnavailable",
    "State",
    "Submission",
    "Timings",
    "UnknownJob",
    "Word",
    "__version__",
    "verify_webhook",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        from importlib import import_module

        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("decibatch")
    except metadata.PackageNotFoundError:
        return "0+unknown"
