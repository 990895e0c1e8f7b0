"""Waiting for something that has no event of its own, with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], what: str = "condition", seconds: float = 30.0) -> Any:
    """Look until ``condition`` holds, and return what it gave; fails after ``seconds``."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while not (held := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not hold within {seconds:g} s")
        pause.wait(0.005)
    return held
