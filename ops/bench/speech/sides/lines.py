"""How a side speaks: one JSON object a line, first its facts, then an answer to each line of paths.

Imported in the peers' environments: nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Heard(NamedTuple):
    """What is said in one file: text, and (start, end, text) of each segment in seconds."""

    text: str
    segments: list[tuple[float, float, str]]


def answers() -> Any:
    """Where to write. What libraries print goes to standard error from now on, and does not mix with it."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def serve(output: Any, facts: dict[str, Any], hear: Callable[[Sequence[str]], list[Heard]]) -> None:
    """Answer until the end of the input. The time is that of ``hear`` alone: the pipe does not count."""
    _tell(output, facts)
    for line in sys.stdin:
        paths = json.loads(line)
        began = time.perf_counter()
        heard = hear(paths)
        seconds = time.perf_counter() - began
        _tell(output, {"seconds": seconds, "heard": [one._asdict() for one in heard]})


def one_by_one(hear: Callable[[str], Heard]) -> Callable[[Sequence[str]], list[Heard]]:
    return lambda paths: [hear(path) for path in paths]


def _tell(output: Any, what: dict[str, Any]) -> None:
    output.write(json.dumps(what) + "\n")
    output.flush()
