"""A launchd that is played: states as launchd has them, answers as launchctl was recorded to give them.

The words and numbers come from published reports: "Bootstrap failed: 5: Input/output error" after a bootout that
was not over (openclaw 136453, cc-connect 35, tuist 10143), 37 "Operation already in progress" (d-inference 1102),
"Boot-out failed: 3: No such process", and 113 "Could not find service" of a service that is not loaded.
"""

from __future__ import annotations

import plistlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.service.launchctl import Answer

RUNNING = """{target} = {{
\tactive count = 1
\tpath = {path}
\ttype = LaunchAgent
\tstate = {state}

\tprogram = {program}
\tenvironment = {{
\t\tXPC_SERVICE_NAME => {label}
\t}}

\tminimum runtime = 10
\texit timeout = 45
\truns = {runs}
{pid}\timmediate reason = non-ipc demand
\tlast exit code = {last_exit}

\tevent channels = {{
\t\t"com.apple.xpc.activity" = {{
\t\t\tstate = active
\t\t}}
\t}}
}}
"""


@dataclass
class PlayedLaunchd:
    """Pass ``ask`` where launchctl is asked, and ``monotonic`` and ``sleep`` as its clock."""

    drain_s: float = 3.0
    """Seconds from a bootout until the service is gone."""
    refusals: list[Answer] = field(default_factory=list)
    """What the next bootstraps answer, before one works."""
    logged_in: bool = True
    dies: bool = False
    """The program ends as soon as it is started."""
    now: float = 0.0
    calls: list[tuple[str, ...]] = field(default_factory=list)
    loaded: dict[str, Path] = field(default_factory=dict)
    runs: int = 0
    _gone_at: float | None = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._settle()

    def _settle(self) -> None:
        if self._gone_at is not None and self.now >= self._gone_at:
            self.loaded.clear()
            self._gone_at = None

    def ask(self, arguments: tuple[str, ...]) -> Answer:
        self.calls.append(arguments)
        self._settle()
        verb, target, *rest = arguments
        if target.startswith("gui/") and not self.logged_in:
            return Answer(125, "Could not find domain for user gui: 501\n")
        answer: Answer = getattr(self, f"_{verb}")(target, *rest)
        return answer

    def verbs(self) -> list[str]:
        """What was asked that changes something."""
        return [call[0] for call in self.calls if call[0] != "print"]

    def _enable(self, target: str) -> Answer:
        return Answer(0)

    def _bootstrap(self, domain: str, file: str) -> Answer:
        busy = (
            "Bootstrap failed: 5: Input/output error\nTry re-running the command as root for richer errors.\n"
        )
        if self._gone_at is not None or self.loaded:
            return Answer(5, busy)
        if self.refusals:
            return self.refusals.pop(0)
        told: dict[str, Any] = plistlib.loads(Path(file).read_bytes())
        self.loaded[f"{domain}/{told['Label']}"] = Path(file)
        self.runs += 1
        return Answer(0)

    def _bootout(self, target: str) -> Answer:
        if target not in self.loaded:
            return Answer(3, "Boot-out failed: 3: No such process\n")
        self._gone_at = self.now + self.drain_s
        return Answer(0)

    def _kickstart(self, target: str) -> Answer:
        self.runs += 1
        self.dies = False
        return Answer(0)

    def _print(self, target: str) -> Answer:
        if target not in self.loaded:
            label = target.rsplit("/", 1)[1]
            return Answer(
                113, f'Bad request.\nCould not find service "{label}" in domain for user gui: 501\n'
            )
        file = self.loaded[target]
        told: dict[str, Any] = plistlib.loads(file.read_bytes())
        text = RUNNING.format(
            target=target,
            label=told["Label"],
            path=file,
            program=told["ProgramArguments"][0],
            runs=self.runs,
            state="spawn scheduled" if self.dies else "running",
            pid="" if self.dies else f"\tpid = {4200 + self.runs}\n",
            last_exit="1" if self.dies else "(never exited)",
        )
        return Answer(0, text)
