"""The flows of the clients, played by hand: which questions are asked, and which are spared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queueing import flows
from queueing.client import _core
from queueing.errors import JobCancelled
from queueing.flows import Ask, Core, Finished, JobHandle, Listen, Wait, advance
from queueing.job import State
from queueing.protocol import JobStatus
from tests.support.bench import result_json

JOB = "job-12345"
CANCELLED = b'cancelled {"code":"cancelled","message":"the job was cancelled","retryable":false}'


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("queueing.client.time.monotonic", clock)
    yield clock


def core() -> Core:
    return _core("main", "m", None, None, patience_s=5.0, poll_s=5.0)


def status(state: State = State.RUNNING) -> JobStatus:
    return JobStatus(JOB, state, "m", "normal", "t", 1, 0, 0, 0, None, 0, b"{}")


def names(flow: flows.Flow[object], *answers: object) -> list[str]:
    """The effects of a flow that is given these answers, by their kinds."""
    seen = [advance(flow)]
    for answer in answers:
        seen.append(advance(flow, answer))
    return [type(effect).__name__ for effect in seen]


def test_a_job_just_admitted_is_not_asked_for_before_listening(clock: Clock) -> None:
    """Within 10 ms of its admission the first thing is the doorbell; later, or for a bare id, it is the state."""
    handle = JobHandle(JOB, admitted=clock.now)
    assert isinstance(advance(core().result(handle, None)), Listen)
    assert isinstance(advance(core().result(handle, 0)), Ask)
    assert isinstance(advance(core().result(JOB, None)), Ask)
    clock.now += 0.011
    assert isinstance(advance(core().result(handle, None)), Ask)


def test_an_end_between_admission_and_listening_is_seen(clock: Clock) -> None:
    """After listening the state is read once, so that an end that nobody heard is not waited for."""
    flow = core().result(JobHandle(JOB, admitted=clock.now), None)
    assert names(flow, None) == ["Listen", "Ask"]
    assert isinstance(advance(flow, status()), Wait)


def test_what_the_bell_tells_is_not_asked_for_again(clock: Clock) -> None:
    """A result that came with the bell is returned as it is."""
    flow = core().result(JobHandle(JOB, admitted=clock.now), None)
    assert names(flow, None, status()) == ["Listen", "Ask", "Wait"]
    end = advance(flow, b"done " + result_json("hi there").encode())
    assert isinstance(end, Finished) and end.value.text == "hi there"


def test_an_error_that_the_bell_tells_is_raised(clock: Clock) -> None:
    """An end without a result raises what the state says, with the error that came along."""
    flow = core().result(JobHandle(JOB, admitted=clock.now), None)
    assert names(flow, None, status()) == ["Listen", "Ask", "Wait"]
    with pytest.raises(JobCancelled) as caught:
        advance(flow, CANCELLED)
    assert caught.value.error.code == "cancelled"


@pytest.mark.parametrize("said", [b"", b"done", b"dead"])
def test_a_bell_that_tells_no_outcome_is_followed_by_a_question(clock: Clock, said: bytes) -> None:
    """Where the bell was silent, or the outcome too large for it, the state is read."""
    flow = core().result(JobHandle(JOB, admitted=clock.now), None)
    assert names(flow, None, status(), said) == ["Listen", "Ask", "Wait", "Ask"]
