"""Following many jobs at once."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from ops.follow import THREADS, Tracked, follow
from ops.progress import sentence, show
from queueing.errors import JobFailed, ServerUnavailable
from queueing.events import Event
from queueing.job import ErrorInfo, Result, State


@dataclass
class FakeClient:
    """Says of each job what it was told to say."""

    said: dict[str, list[Event]] = field(default_factory=dict)
    outcomes: dict[str, Any] = field(default_factory=dict)
    hold: threading.Event | None = None

    def events(self, job_id: str) -> Iterator[Event]:
        yield from self.said.get(job_id, [])
        if self.hold is not None:
            self.hold.wait(30)

    def result(self, job_id: str, timeout: float | None = None) -> Result:
        outcome = self.outcomes.get(job_id, Result(text=f"text of {job_id}"))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def status(self, job_id: str) -> Any:
        return type("Status", (), {"state": State.RUNNING, "result": None, "error": None})()


def tracked(*names: str) -> list[Tracked]:
    return [Tracked(name, name, name) for name in names]


def test_every_job_comes_to_its_end() -> None:
    """More jobs than threads all end, each with its own result."""
    jobs = tracked(*(f"j{number}" for number in range(3 * THREADS)))
    for _ in follow(FakeClient(), jobs, timeout_s=None):
        pass
    assert [job.result.text for job in jobs if job.result] == [f"text of {job.job}" for job in jobs]


def test_a_failure_is_kept_with_its_job() -> None:
    """A job that failed has its error, and the one beside it its result."""
    error = ErrorInfo(code="not_audio", message="no sound in it")
    jobs = tracked("good", "bad")
    for _ in follow(FakeClient(outcomes={"bad": JobFailed("bad", error)}), jobs, timeout_s=None):
        pass
    assert [(job.state, job.error) for job in jobs] == [(State.DONE, None), (State.FAILED, error)]


def test_a_lost_server_ends_the_wait() -> None:
    """Where the server is gone the one who waits is told, instead of waiting for ever."""
    client = FakeClient(outcomes={"a": ServerUnavailable("gone")})
    with pytest.raises(ServerUnavailable):
        list(follow(client, tracked("a"), timeout_s=None))


def test_a_timeout_leaves_the_state_of_the_server() -> None:
    """After the time-out a job has the state that the server gives it, and no result."""
    hold = threading.Event()
    (job,) = tracked("a")
    list(follow(FakeClient(hold=hold), [job], timeout_s=0.05))
    hold.set()
    assert (job.state, job.result) == (State.RUNNING, None)


def test_a_job_that_was_never_sent_is_not_followed() -> None:
    """An input without a job does not hold up the others."""
    lost = Tracked("x", "x")
    lost.end(ErrorInfo(code="input_not_found", message="there is no such file"), State.FAILED)
    assert [job.job for job in follow(FakeClient(), [lost, *tracked("a")], timeout_s=None)] == ["a"]


def applied(*events: Event) -> Tracked:
    (job,) = tracked("a")
    for event in events:
        job.apply(event)
    return job


def test_partial_texts_are_put_in_the_order_of_their_chunks() -> None:
    """The text so far is that of the recording, whichever piece was heard first."""
    parts = [
        Event("partial", 1, {"chunk": 1, "text": "world."}),
        Event("partial", 1, {"chunk": 0, "text": "Hello"}),
    ]
    assert applied(*parts).text == "Hello world."


def test_a_new_attempt_drops_what_the_old_one_said() -> None:
    """Text of an earlier attempt is gone when the next one begins, and cannot come back."""
    job = applied(
        Event("partial", 1, {"chunk": 0, "text": "old"}),
        Event("started", 2),
        Event("partial", 1, {"chunk": 0, "text": "late"}),
    )
    assert (job.text, job.attempt) == ("", 2)


def test_a_job_handed_back_waits_again() -> None:
    """After a release the job is waiting, not running."""
    assert applied(Event("started", 1), Event("release", 1)).state is State.WAITING


def test_an_unknown_event_changes_nothing() -> None:
    """What a newer worker says and we do not know is passed over."""
    assert applied(Event("started", 1), Event("aura", 1, {"text": "x"})).text == ""


def test_a_line_of_progress_holds_no_transcript() -> None:
    """The sentence for a job that is done tells times and no words."""
    (job,) = tracked("a.wav")
    job.end(Result(text="secret words", duration_s=2.0), State.DONE)
    assert sentence(job) == "a.wav: done, 2.0 s of audio in 0.0 s"


@pytest.mark.parametrize(
    ("stage", "total", "shown"),
    [("media", 0, "2 of ?"), ("engine", 4, "━━━━━━━━━━━━")],
    ids=["media", "engine"],
)
def test_chunks_are_counted_before_all_are_known(stage: str, total: int, shown: str) -> None:
    """While media still decodes, a terminal shows how many chunks are heard; a bar comes once their number is known."""
    job = applied(Event("started", 1), Event("progress", 1, {"stage": stage, "done": 2, "total": total}))
    console = Console(force_terminal=True, color_system=None, width=100, file=io.StringIO())
    show(console, [job], iter([job]))
    assert isinstance(console.file, io.StringIO)
    assert shown in console.file.getvalue()
    assert ("of ?" in console.file.getvalue()) is (total == 0)
