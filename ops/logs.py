"""How the worker's log looks: one line for each record, the record's own fields behind it as ``name=value``."""

from __future__ import annotations

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z info decibatch.worker: memory level before=OPEN after=QUEUE``."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}: {record.getMessage()}"
        extras = (f" {name}={_plain(value)}" for name, value in vars(record).items() if name not in _STANDARD)
        line = head + "".join(extras)
        # One record is one line, so that a log can be searched: the trace goes behind it, escaped.
        return line + (
            f" trace={json.dumps(self.formatException(record.exc_info))}" if record.exc_info else ""
        )


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def set_up(level: str) -> None:
    """Log to standard error, our own loggers at ``level`` and those of libraries at warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in ("decibatch", "worker", "engine", "queueing"):
        logging.getLogger(ours).setLevel(level.upper())
