"""Chunks as they come from the worker: their samples, and what cannot be asked of a model."""

from __future__ import annotations

import os
from pathlib import Path

from engine import windows
from engine.protocol import SAMPLE_RATE, ChunkRequest

SAMPLE_BYTES = 2


class BadSpool(Exception):
    """A spool file that is missing, unreadable, or shorter than what was asked of it."""


def read_spool(path: str, offset: int, samples: int) -> bytes:
    """Samples of a spool file: 16 kHz, signed 16-bit little-endian, mono.

    :param offset: first sample.
    :raises BadSpool: the file does not hold them.
    """
    try:
        # A spool is the worker's own plain file: a link in its place is not followed.
        handle = os.open(Path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(handle, "rb") as file:  # noqa: PTH123 - it is opened by its handle
            file.seek(SAMPLE_BYTES * offset)
            data = file.read(SAMPLE_BYTES * samples)
    except OSError as exc:
        raise BadSpool(f"the spool file cannot be read ({type(exc).__name__})") from exc
    if len(data) != SAMPLE_BYTES * samples:
        raise BadSpool("the spool file is shorter than the chunk")
    return data


def refusal(
    chunk: ChunkRequest, *, languages: tuple[str, ...], can_translate: bool
) -> tuple[str, str] | None:
    """Why a model cannot do what a chunk asks: a code of ``ChunkFailed`` and a message, or None.

    What cannot be honoured is refused, never ignored.
    """
    options = chunk.options
    if options.task == "translate" and not can_translate:
        return "unsupported_option", "the model cannot translate"
    if options.language is not None and options.language not in languages:
        return "unsupported_language", "the model does not know the language"
    if not options.temperatures or any(not 0 <= t <= 2 for t in options.temperatures):
        return "unsupported_option", "temperatures lie between 0 and 2, and there is at least one"
    if options.max_tokens is not None and options.max_tokens < 1:
        return "unsupported_option", "max_tokens is at least 1"
    if not 0 < chunk.samples <= windows.MAX_WINDOW_S * SAMPLE_RATE or chunk.offset < 0:
        return "bad_spool", "a chunk holds between 1 sample and 30 s"
    return None
