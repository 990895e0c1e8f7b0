"""What launchd is told about the worker: a property list, made from a few plain values.

Keys are those of launchd.plist(5). Nothing here touches the system.
"""

from __future__ import annotations

import math
import plistlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABEL = "decibatch.worker"
ENGINE_END_S = 15.0
"""Seconds after the drain that handing back, stopping the engine and leaving may take."""
OPEN_FILES = 8192
"""The soft limit that launchd gives is 256; each client, decoder and spool file takes one."""
THROTTLE_S = 10
"""Seconds between two starts at least. The worker itself waits for Redis; it does not end because that is away."""
UMASK = 0o077
"""What the worker writes is for its user alone. A property list holds it as a decimal number: 63."""
NICE_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


class NotAbsolute(ValueError):
    """launchd expands neither ``~`` nor variables, and its working directory is not ours."""


@dataclass(frozen=True, slots=True)
class Service:
    """How the worker is run.

    :raises NotAbsolute: on making one with a path that launchd would not find.
    """

    python: Path
    """The interpreter of the environment that Decibatch is installed in."""
    config: Path
    """The TOML file with the settings, secrets included; it stays where it is."""
    log_dir: Path
    home: Path
    drain_s: float
    user: str | None = None
    """Whom a system-wide service runs as; None for an agent of whoever is logged in."""
    label: str = LABEL

    def __post_init__(self) -> None:
        for path in (self.python, self.config, self.log_dir, self.home):
            if not path.is_absolute() or "~" in path.parts[1:2]:
                raise NotAbsolute(f"launchd needs absolute paths, not {path}")

    @property
    def log(self) -> Path:
        """The worker's own log, which it rotates."""
        return self.log_dir / "worker.log"

    @property
    def output(self) -> Path:
        """What comes out beside the log: the words of a crash, and nothing else, because launchd never rotates it."""
        return self.log_dir / "worker.out"


def contents(service: Service) -> dict[str, Any]:
    """The property list as a dictionary."""
    told: dict[str, Any] = {
        "Label": service.label,
        # -P: modules come from the environment, never from the folder in which it is started.
        "ProgramArguments": [str(service.python), "-P", "-m", "decibatch", "worker"],
        "EnvironmentVariables": {
            "HOME": str(service.home),
            "PATH": f"{service.python.parent}:{NICE_PATH}",
            "DECIBATCH_CONFIG": str(service.config),
            "DECIBATCH_LOG_FILE": str(service.log),
        },
        "WorkingDirectory": "/",
        "RunAtLoad": True,
        # An exit with status 0 was asked for; any other end, a kill included, is followed by a start.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": THROTTLE_S,
        # launchd kills what has not ended so long after SIGTERM. Its own default, as observed, is 5 s.
        "ExitTimeOut": math.ceil(service.drain_s + ENGINE_END_S),
        # Unset or Background throttles CPU, GPU and disk to a fraction.
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "Umask": UMASK,
        "StandardOutPath": str(service.output),
        "StandardErrorPath": str(service.output),
    }
    if service.user is not None:
        told["UserName"] = service.user
    return told


def render(service: Service) -> bytes:
    """The property list in XML."""
    return plistlib.dumps(contents(service), sort_keys=False)
