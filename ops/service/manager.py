"""Installs, starts and stops the service. Every step may be repeated: what is so already is left so."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ops.exits import Exit, Trouble
from ops.service.launchctl import (
    IN_PROGRESS,
    NO_SUCH_PROCESS,
    NO_SUCH_SERVICE,
    Answer,
    Ask,
    Loaded,
    parse_print,
)
from ops.service.plist import Service, contents, render

POLL_S = 0.5
BOOTSTRAP_S = 30.0
"""Seconds for which a bootstrap is tried again while launchd says that something is in progress."""
START_S = 15.0


@dataclass(frozen=True, slots=True)
class Clock:
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Place:
    """Where launchd keeps the service."""

    domain: str
    """``gui/501`` or ``system``."""
    file: Path
    label: str

    @property
    def target(self) -> str:
        return f"{self.domain}/{self.label}"


def place(service: Service, *, system: bool, uid: int, home: Path) -> Place:
    """An agent of the logged-in user, or a daemon of the system, which starts before anybody logs in."""
    if system:
        folder, domain = Path("/Library/LaunchDaemons"), "system"
    else:
        folder, domain = home / "Library" / "LaunchAgents", f"gui/{uid}"
    return Place(domain, folder / f"{service.label}.plist", service.label)


@dataclass(frozen=True, slots=True)
class Manager:
    """:param ask: runs launchctl."""

    service: Service
    place: Place
    ask: Ask
    clock: Clock = field(default_factory=Clock)

    def install(self) -> str:
        """Write the property list, and start the service with it. Says what was done."""
        wanted = render(self.service)
        file = self.place.file
        current = file.read_bytes() if file.is_file() else None
        if current == wanted and self.status() is not None:
            return f"{self.place.target} is installed already, as it should be."
        self.service.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.service.user is not None and os.geteuid() == 0:
            # Made by root here, and written by whoever the service runs as.
            shutil.chown(self.service.log_dir, self.service.user)
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, wanted)
        self._bootout()
        self._bootstrap()
        return f"{self.place.target} is installed and started: {file}"

    def uninstall(self) -> str:
        """Stop the service, and remove the property list. Settings, models and logs stay."""
        was = self._bootout()
        existed = self.place.file.is_file()
        self.place.file.unlink(missing_ok=True)
        return (
            f"{self.place.target} is removed."
            if was or existed
            else f"{self.place.target} was not installed."
        )

    def start(self) -> str:
        self._must_be_installed()
        loaded = self.status()
        if loaded is None:
            self._bootstrap()
        elif not loaded.running:
            self._check(self.ask(("kickstart", self.place.target)), "kickstart")
        else:
            return f"{self.place.target} runs already, as process {loaded.pid}."
        return self._say_started()

    def stop(self) -> str:
        """Let it finish what runs, and keep it from starting again until it is told to, or until the next login or
        boot.
        """
        if not self._bootout():
            return f"{self.place.target} was not running."
        return f"{self.place.target} is stopped; it comes back with `start`, or with the next login or boot."

    def restart(self) -> str:
        """Stop and start, with the property list as it is now: so an update of it takes effect."""
        self._must_be_installed()
        self._bootout()
        self._bootstrap()
        return self._say_started()

    def status(self) -> Loaded | None:
        """None where launchd does not know the service."""
        answer = self.ask(("print", self.place.target))
        if answer.status in (NO_SUCH_SERVICE, NO_SUCH_PROCESS):
            return None
        self._check(answer, "print")
        return parse_print(answer.output)

    # --- inside -----------------------------------------------------------------------------------

    def _must_be_installed(self) -> None:
        if not self.place.file.is_file():
            raise Trouble(f"There is no {self.place.file}: decibatch service install", Exit.USAGE)

    def _bootout(self) -> bool:
        """Unload, and wait until it has ended: bootout answers at once, or while the old instance still drains.

        :returns: False where it was not loaded.
        """
        answer = self.ask(("bootout", self.place.target))
        if answer.status in (NO_SUCH_PROCESS, NO_SUCH_SERVICE):
            return False
        if answer.status not in (0, *IN_PROGRESS):
            self._check(answer, "bootout")
        limit = float(contents(self.service)["ExitTimeOut"]) + BOOTSTRAP_S
        if self._poll(lambda: self.status() is None, limit):
            return True
        raise Trouble(
            f"{self.place.target} is still there {limit:.0f} s after bootout: launchctl print says why."
        )

    def _bootstrap(self) -> None:
        """Load. For some seconds after a bootout launchd answers "5: Input/output error", or that it is in progress."""
        answer = Answer(0)
        # One that was disabled by hand would be refused; what is enabled already stays so.
        self._check(self.ask(("enable", self.place.target)), "enable")

        def loaded() -> bool:
            nonlocal answer
            answer = self.ask(("bootstrap", self.place.domain, str(self.place.file)))
            if answer.status in IN_PROGRESS and self.status() is not None:
                # EIO is also the answer for what is loaded already.
                answer = Answer(0)
            return answer.status not in IN_PROGRESS

        self._poll(loaded, BOOTSTRAP_S)
        self._check(answer, "bootstrap")

    def _say_started(self) -> str:
        def running() -> bool:
            loaded = self.status()
            return loaded is not None and loaded.running

        if self._poll(running, START_S):
            loaded = self.status()
            return f"{self.place.target} runs" + (f", as process {loaded.pid}." if loaded else ".")
        raise Trouble(f"{self.place.target} was started and does not run: decibatch service logs")

    def _poll(self, done: Callable[[], bool], limit_s: float) -> bool:
        deadline = self.clock.monotonic() + limit_s
        while not done():
            if self.clock.monotonic() >= deadline:
                return False
            self.clock.sleep(POLL_S)
        return True

    def _check(self, answer: Answer, what: str) -> None:
        if answer.status == 0:
            return
        said = " ".join(answer.output.split())[:300] or "nothing"
        hint = ""
        if "Could not find domain" in said or answer.status == 125:
            hint = " Nobody is logged in at the screen; --system installs a service that needs no login."
        elif self.place.domain == "system" and os.geteuid() != 0:
            hint = " A system-wide service needs root: sudo."
        raise Trouble(f"launchctl {what} answered {answer.status}: {said}.{hint}")


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all; launchd refuses one that others may write."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        temporary.replace(file)
    except PermissionError as exc:
        raise Trouble(f"{file} cannot be written: a system-wide service needs root: sudo.") from exc
    finally:
        with contextlib.suppress(PermissionError):
            temporary.unlink(missing_ok=True)
