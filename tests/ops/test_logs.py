"""The worker's log."""

from __future__ import annotations

import logging
import sys

from ops.logs import LineFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("decibatch.worker", logging.INFO, __file__, 1, message, (), None)
    made.created = 0.0
    made.msecs = 7.0
    vars(made).update(extra)
    return made


def test_fields_stand_behind_the_message() -> None:
    """What a record carries beyond its message is written as name=value."""
    line = LineFormatter().format(record("memory level", before="OPEN", share=0.81))
    assert line == "1970-01-01T00:00:00.007Z info decibatch.worker: memory level before=OPEN share=0.81"


def test_a_value_cannot_break_the_line() -> None:
    """A line break inside a value is escaped: one record is one line."""
    assert "\n" not in LineFormatter().format(record("x", why="a\nb"))


def test_a_trace_stays_on_its_line() -> None:
    """An exception's trace is part of the one line of its record."""
    made = record("failed")
    try:
        raise ValueError("inside")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = LineFormatter().format(made)
    assert "\n" not in line
    assert "ValueError: inside" in line
