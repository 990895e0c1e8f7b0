"""The worker's log: one record a line, as JSON for machines or ``name=value`` for people; rotated where it is a file.

Records are made with :mod:`logging` everywhere, their fields given as ``extra``; structlog shapes them here. The last
line of defence of invariant I9 stands here too: fields that could carry what was said are dropped by their name,
and a password in a URL is masked wherever it appears.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import structlog
from structlog.typing import Processor

MIB = 1024 * 1024
PRIVATE = frozenset(
    {"text", "texts", "partial", "prompt", "transcript", "segments", "words", "audio", "samples", "data"}
    | {"payload", "password", "token", "secret", "redis_url", "authorization", "input", "url"}
)
"""Fields that no record may carry, whoever wrote it."""
HIDDEN = "(not logged)"
_PASSWORD = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s@]*@")
_OURS = ("decibatch", "worker", "engine", "queueing")

Event = MutableMapping[str, Any]


def without_secrets(logger: Any, method: str, event: Event) -> Event:
    """A structlog processor: see :data:`PRIVATE`."""
    for name, value in event.items():
        if name.startswith("_"):
            continue
        if name.lower() in PRIVATE:
            event[name] = HIDDEN
        elif isinstance(value, str):
            event[name] = _PASSWORD.sub(r"\1:***@", value)
    return event


def as_line(logger: Any, method: str, event: Event) -> str:
    """``2026-01-31T12:00:00.123Z info decibatch.worker: memory level before=OPEN after=QUEUE``."""
    told = dict(event)
    head = " ".join(str(told.pop(name)) for name in ("timestamp", "level"))
    # One record is one line, so that a log can be searched.
    fields = "".join(
        f" {name}={_plain(value)}" for name, value in told.items() if name not in ("logger", "event")
    )
    return f"{head} {told['logger']}: {_one_line(str(told['event']))}{fields}"


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _stamp(logger: Any, method: str, event: Event) -> Event:
    """The record's own time, in UTC with milliseconds."""
    moment = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def formatter(form: Literal["json", "line"]) -> logging.Formatter:
    """For a handler of :mod:`logging`."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _stamp,
        structlog.processors.format_exc_info,
        without_secrets,
    ]
    last: Processor = structlog.processors.JSONRenderer() if form == "json" else as_line
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
    )


def set_up(
    level: str,
    form: Literal["auto", "json", "line"] = "auto",
    file: Path | None = None,
    *,
    file_mb: int = 10,
    file_count: int = 5,
) -> None:
    """Log our own loggers at ``level`` and those of libraries at warning, to a file or to standard error.

    Raises OSError where the file cannot be written.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=file_mb * MIB, backupCount=file_count, encoding="utf-8"
        )
    terminal = file is None and sys.stderr.isatty()
    chosen: Literal["json", "line"] = ("line" if terminal else "json") if form == "auto" else form
    handler.setFormatter(formatter(chosen))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in _OURS:
        logging.getLogger(ours).setLevel(level.upper())
