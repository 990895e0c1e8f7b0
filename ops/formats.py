"""Transcripts as text, JSON, SubRip and WebVTT."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from queueing.job import Result, Segment

FORMATS = ("text", "json", "srt", "vtt")


def render(result: Result, form: str) -> str:
    """The result in one of :data:`FORMATS`, ending in a line break. Raises ValueError for another format."""
    match form:
        case "text":
            return result.text.strip() + "\n"
        case "json":
            return json.dumps(result.model_dump(mode="json"), ensure_ascii=False) + "\n"
        case "srt":
            return srt(result.segments)
        case "vtt":
            return vtt(result.segments)
        case _:
            raise ValueError(f"no such format: {form}")


def srt(segments: Iterable[Segment]) -> str:
    """SubRip: numbered cues, ``HH:MM:SS,mmm``, a blank line after each. Cues without text are left out."""
    cues = (
        f"{number}\n{timestamp(s.start, ',')} --> {timestamp(s.end, ',')}\n{_one_cue(s.text)}\n\n"
        for number, s in enumerate(_spoken(segments), 1)
    )
    return "".join(cues)


def vtt(segments: Iterable[Segment]) -> str:
    """WebVTT (W3C): ``HH:MM:SS.mmm``; ``&``, ``<`` and ``>`` are written as character references.

    Where a segment has words, each but the first has its time before it, within the cue.
    """
    cues = (
        f"{timestamp(s.start, '.')} --> {timestamp(s.end, '.')}\n{_timed_words(s)}\n\n"
        for s in _spoken(segments)
    )
    return "WEBVTT\n\n" + "".join(cues)


def _timed_words(segment: Segment) -> str:
    """The text of a cue. A time within it must be later than the cue's start and the one before (W3C, 4.2.2)."""
    if not segment.words:
        return _escape(_one_cue(segment.text))
    written, last = "", round(segment.start * 1000)
    for word in segment.words:
        blank = " " if written and word.text[:1].isspace() else ""
        now = round(word.start * 1000)
        mark = f"<{timestamp(word.start, '.')}>" if written and last < now < round(segment.end * 1000) else ""
        last = now if mark else last
        written += blank + mark + _escape(_one_cue(word.text))
    return written


def timestamp(seconds: float, point: str) -> str:
    """Seconds as ``HH:MM:SS`` and milliseconds behind ``point``; hours take more digits when they need them."""
    # Rounded once and as a whole: 59.9996 s is a minute, not 59 s and 1000 ms.
    total = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(total, 60_000)
    return (
        f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
    )


def _spoken(segments: Iterable[Segment]) -> Iterable[Segment]:
    return (segment for segment in segments if segment.text.strip())


def _one_cue(text: str) -> str:
    """On one line: a blank line would end the cue, and an arrow would be read as its times."""
    return re.sub(r"\s+", " ", text).strip().replace("-->", "→")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
