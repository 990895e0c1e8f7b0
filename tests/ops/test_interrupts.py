"""Interrupts, wherever they land."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ops.follow import Tracked, follow
from ops.interrupts import Interrupts
from tests.ops.test_follow import FakeClient


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


class Finalized:
    """The signal comes while this is collected."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_at_once(interrupts: Interrupts, number: signal.Signals) -> None:
    """Either signal raises where the program stands."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_finalizer_ends_the_following(interrupts: Interrupts) -> None:
    """What the interpreter dropped is raised at the next look, before anything is waited for."""
    thing = Finalized()
    del thing
    job = Tracked("in", "in", "a")
    with pytest.raises(KeyboardInterrupt):
        list(follow(FakeClient(), [job], timeout_s=None, check=interrupts.check))


def test_no_signal_no_interrupt(interrupts: Interrupts) -> None:
    """A look without a signal does nothing."""
    interrupts.check()
