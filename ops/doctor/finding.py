"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``warn``: it works, but worse than it could; ``fail``: it does not work."""

    check: str
    verdict: Verdict
    said: str
    mend: str = ""
    """A command, or what to change; "" where there is nothing to mend."""


def ok(check: str, said: str) -> Finding:
    return Finding(check, "ok", said)


def warn(check: str, said: str, mend: str) -> Finding:
    return Finding(check, "warn", said, mend)


def fail(check: str, said: str, mend: str) -> Finding:
    return Finding(check, "fail", said, mend)
