"""The worker's log."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from ops import logs


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("decibatch.worker", logging.INFO, __file__, 1, message, (), None)
    made.created = 0.007
    made.msecs = 7.0
    vars(made).update(extra)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(logs.formatter("json").format(made))
    return told


def test_fields_stand_behind_the_message() -> None:
    """What a record carries beyond its message is written as name=value."""
    line = logs.formatter("line").format(record("memory level", before="OPEN", share=0.81))
    assert line == "1970-01-01T00:00:00.007Z info decibatch.worker: memory level before=OPEN share=0.81"


def test_json_has_the_same_fields() -> None:
    """As JSON, a record is one object with its time, level, logger, message and own fields."""
    assert as_json(record("memory level", before="OPEN", share=0.81)) == {
        "timestamp": "1970-01-01T00:00:00.007Z",
        "level": "info",
        "logger": "decibatch.worker",
        "event": "memory level",
        "before": "OPEN",
        "share": 0.81,
    }


@pytest.mark.parametrize("form", ["line", "json"])
def test_a_value_cannot_break_the_line(form: Any) -> None:
    """A line break inside a value or the message is escaped: one record is one line."""
    assert "\n" not in logs.formatter(form).format(record("x\ny", why="a\nb"))


@pytest.mark.parametrize("form", ["line", "json"])
def test_a_trace_stays_on_its_line(form: Any) -> None:
    """An exception's trace is part of the one line of its record."""
    made = record("failed")
    try:
        raise ValueError("inside")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = logs.formatter(form).format(made)
    assert "\n" not in line
    assert "ValueError: inside" in line


@pytest.mark.parametrize("name", sorted(logs.PRIVATE))
def test_private_fields_are_dropped(name: str) -> None:
    """What was said, heard or entrusted does not reach a line, whoever logs it (invariant I9)."""
    assert "four words of speech" not in logs.formatter("json").format(
        record("x", **{name: "four words of speech"})
    )


def test_a_password_in_a_url_is_masked() -> None:
    """A URL keeps its user and host, and loses its password, in a field, in the message and in a trace."""
    url = "redis://app:hunter2@queue.example:6379/0"
    made = record(f"cannot reach {url}", error=f"ConnectionError: {url}")
    try:
        raise ValueError(url)
    except ValueError:
        made.exc_info = sys.exc_info()
    line = logs.formatter("json").format(made)
    assert "hunter2" not in line
    assert line.count("redis://app:***@queue.example") == 3


@pytest.fixture
def _untouched_logging() -> Any:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("_untouched_logging")
def test_a_file_is_rotated(tmp_path: Path) -> None:
    """A log file that reaches its size is put aside, and no more than so many are kept; every line stays whole."""
    file = tmp_path / "made" / "worker.log"
    logs.set_up("info", file=file, file_mb=1, file_count=2)
    log = logging.getLogger("decibatch.worker")
    for number in range(45):
        log.info("a long one", extra={"number": number, "filler": "x" * 100_000})
    files = sorted(path.name for path in file.parent.iterdir())
    assert files == ["worker.log", "worker.log.1", "worker.log.2"]
    lines = [line for name in files for line in (file.parent / name).read_text("utf-8").splitlines()]
    assert max(json.loads(line)["number"] for line in lines) == 44
    assert all(path.stat().st_size <= logs.MIB for path in file.parent.iterdir())
