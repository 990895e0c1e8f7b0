"""What a job says while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

FINAL = frozenset({"done", "failed", "cancelled", "expired", "dead"})
"""Types of the last event of a job: the names of the final states."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` chunks have their text.

    In stage ``media`` the recording is still fetched, decoded and cut, so that their number is not known: ``total``
    is 0, and ``done`` counts all the same, since the first chunks of a long recording are heard meanwhile. In stage
    ``engine`` it is known.
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a job.

    A job that is tried again says everything again. Whoever shows partial text must therefore drop what
    an older ``attempt`` said as soon as an event of a newer one arrives.
    """

    type: str
    """``started``, ``retry``, ``release``, whatever the worker reports on its way (progress, partial
    text), and last of all a final state: ``done``, ``failed``, ``cancelled``, ``expired`` or ``dead``."""
    attempt: int
    """The attempt that said it, from 1; 0 where the job never started."""
    data: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    """Position in the job's stream, for ``events(after=...)``; empty where the event was made up because
    the real one is not there (the job never started, or ended more than a minute ago)."""

    @property
    def text(self) -> str | None:
        """Of a ``partial`` event: what one chunk of the recording holds so far, as far as it is decoded."""
        return str(self.data.get("text", "")) if self.type == "partial" else None

    @property
    def progress(self) -> Progress | None:
        """Of a ``progress`` event: how far the job is."""
        if self.type != "progress":
            return None
        done, total = (_whole(self.data.get(name)) for name in ("done", "total"))
        return Progress(str(self.data.get("stage", "")), done, total)

    @property
    def final(self) -> bool:
        """Whether the job has ended with this."""
        return self.type in FINAL


def decode_event(entry: Any, fields: dict[Any, Any]) -> Event:
    """Read one entry of an event stream, as bytes or text. What is not understood is left empty."""
    named = {_text(name): _text(value) for name, value in fields.items()}
    try:
        data = json.loads(named.get("data") or "{}")
    except ValueError:
        data = {}
    attempt = named.get("attempt", "")
    return Event(
        type=named.get("type", ""),
        attempt=int(attempt) if attempt.isdigit() else 0,
        data=data if isinstance(data, dict) else {},
        id=_text(entry),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
