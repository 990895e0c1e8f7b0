"""Waiting for something that has no event of its own, with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 15.0, what: str = "condition") -> None:
    """Look until ``condition`` holds; fails after ``seconds``."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not hold within {seconds:g} s")
        pause.wait(0.005)
