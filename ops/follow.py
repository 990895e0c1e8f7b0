"""Follows many jobs at once, to their ends or to a deadline.

A few threads each follow one job's events at a time; the rest of the program sees one iterator of what
changed. Jobs beyond the number of threads are picked up as others end: a queue serves them in about the
order in which they were sent.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ops.interrupts import POLL_S
from queueing.errors import DecibatchError, JobNotDone
from queueing.job import ErrorInfo, Result, State

THREADS = 8


class Happening(Protocol):
    """An event as the client gives it."""

    @property
    def type(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


class Source(Protocol):
    """What is needed of a client."""

    def events(self, job_id: str, /) -> Iterator[Any]: ...
    def result(self, job_id: str, /, timeout: float | None = None) -> Result: ...
    def status(self, job_id: str, /) -> Any: ...


@dataclass(slots=True)
class Tracked:
    """One input, and all that is known of its job."""

    input: str
    """As the user wrote it."""
    name: str
    """For people: short."""
    job: str | None = None
    """None where it could not even be sent."""
    state: State = State.WAITING
    attempt: int = 0
    stage: str = ""
    done: int = 0
    total: int = 0
    pieces: dict[int, str] = field(default_factory=dict)
    """Text so far of each chunk."""
    result: Result | None = None
    error: ErrorInfo | None = None
    sent_at: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    ended_at: float | None = None

    @property
    def text(self) -> str:
        """What has been heard so far, or the whole transcript."""
        if self.result is not None:
            return self.result.text
        return " ".join(text.strip() for _, text in sorted(self.pieces.items()))

    def apply(self, event: Happening) -> None:
        """Take in an event that is not the end. Unknown ones are of a newer worker, and say nothing here."""
        if event.attempt < self.attempt:
            return
        if event.attempt > self.attempt:
            self._start_again(event.attempt)
        data = event.data
        match event.type:
            case "started":
                self.state = State.RUNNING
            case "progress":
                self.state, self.stage = State.RUNNING, str(data.get("stage", ""))
                self.done, self.total = int(data.get("done", 0)), int(data.get("total", 0))
            case "partial":
                self.pieces[int(data.get("chunk", 0))] = str(data.get("text", ""))
            case "retry" | "release":
                self._start_again(self.attempt)
                self.state = State.WAITING
            case _:
                pass

    def _start_again(self, attempt: int) -> None:
        self.attempt, self.stage, self.done, self.total = attempt, "", 0, 0
        self.pieces.clear()

    def end(self, outcome: Result | ErrorInfo, state: State) -> None:
        self.state, self.ended_at = state, time.monotonic()
        if isinstance(outcome, Result):
            self.result = outcome
        else:
            self.error = outcome


def follow(
    client: Source,
    jobs: Sequence[Tracked],
    *,
    timeout_s: float | None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Tracked]:
    """Yield a job whenever something about it changed, until all have ended or the time is over.

    On time-out the rest keep a state that is not terminal.

    :param check: is called between waits; what it raises ends the following.
    :raises ServerUnavailable: the server went away and did not come back in the client's own time.
    """
    sent = [job for job in jobs if job.job is not None and not job.state.terminal]
    todo: queue.SimpleQueue[Tracked] = queue.SimpleQueue()
    for job in sent:
        todo.put(job)
    news: queue.SimpleQueue[tuple[Tracked, Any]] = queue.SimpleQueue()
    for _ in range(min(THREADS, len(sent))):
        # Daemons: a blocked read must not keep the program from ending.
        threading.Thread(target=_watch_all, args=(client, todo, news), daemon=True).start()
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left = len(sent)
    while left:
        check()
        wait_s = POLL_S if deadline is None else min(POLL_S, max(0.0, deadline - time.monotonic()))
        try:
            job, what = news.get(timeout=wait_s)
        except queue.Empty:
            if deadline is None or time.monotonic() < deadline:
                continue
            _look_once_more(client, sent)
            return
        left -= _take_in(job, what)
        yield job


def _take_in(job: Tracked, what: Any) -> bool:
    """Apply what a thread saw; True where it was the end."""
    match what:
        case Result():
            job.end(what, State.DONE)
            return True
        case JobNotDone():
            job.end(what.error, State(what.code))
            return True
        case BaseException():
            raise what
        case _:
            job.apply(what)
            return False


def _watch_all(
    client: Source, todo: queue.SimpleQueue[Tracked], news: queue.SimpleQueue[tuple[Tracked, Any]]
) -> None:
    while True:
        try:
            job = todo.get_nowait()
        except queue.Empty:
            return
        assert job.job is not None
        try:
            for event in client.events(job.job):
                news.put((job, event))
            news.put((job, client.result(job.job)))
        except (JobNotDone, DecibatchError) as exc:
            news.put((job, exc))
        except Exception as exc:  # raised again by whoever reads the news, in the main thread
            news.put((job, exc))
            return


def _look_once_more(client: Source, jobs: Sequence[Tracked]) -> None:
    """After a time-out: the state of what has not ended, as the server has it now."""
    for job in jobs:
        if not job.state.terminal and job.job is not None:
            status = client.status(job.job)
            job.state = status.state
            if status.result is not None or status.error is not None:
                job.end(status.result or status.error, status.state)
