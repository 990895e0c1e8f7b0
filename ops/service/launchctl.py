"""How launchd is asked: the few subcommands of launchctl(1) that are needed, and what its answers mean."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

LAUNCHCTL = "/bin/launchctl"
TIMEOUT_S = 60.0

NO_SUCH_PROCESS = 3
IN_PROGRESS = (5, 16, 36, 37)
"""EIO, EBUSY, "Operation now in progress" and "Operation already in progress": the old instance is still going."""
NO_SUCH_SERVICE = 113


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    output: str = ""
    """Standard output and standard error."""


Ask = Callable[[tuple[str, ...]], Answer]
"""Runs launchctl with these arguments."""


def ask(arguments: tuple[str, ...]) -> Answer:
    """The real one. Raises OSError where there is no launchctl, and TimeoutExpired where it hangs."""
    ran = subprocess.run(
        (LAUNCHCTL, *arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return Answer(ran.returncode, ran.stdout + ran.stderr)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A service that launchd knows."""

    state: str
    """E.g. "running", "waiting", "not running", "spawn scheduled"."""
    pid: int | None = None
    last_exit: str = ""
    """"0", "1", "78: EX_CONFIG" or "(never exited)", as launchd says it."""
    runs: int | None = None

    @property
    def running(self) -> bool:
        return self.state == "running" and self.pid is not None


_FIELD = re.compile(r"^\t?[ ]{0,4}(?P<name>[a-z][a-z ]*[a-z]) = (?P<value>[^{].*)$")


def parse_print(output: str) -> Loaded:
    """Reads ``launchctl print DOMAIN/LABEL``.

    Apple calls that output no interface, so only what has been the same since 10.10 is used: fields by their name,
    and of those the first on the top level, because endpoints and event channels have states of their own.
    """
    fields: dict[str, str] = {}
    depth = 0
    for line in output.splitlines():
        stripped = line.strip()
        if stripped.endswith("{"):
            depth += 1
        elif stripped == "}":
            depth -= 1
        elif depth == 1 and (match := _FIELD.match(line)):
            fields.setdefault(match["name"], match["value"].strip())
    pid, runs = fields.get("pid", ""), fields.get("runs", "")
    return Loaded(
        state=fields.get("state", "unknown"),
        pid=int(pid) if pid.isdigit() else None,
        last_exit=fields.get("last exit code", ""),
        runs=int(runs) if runs.isdigit() else None,
    )
