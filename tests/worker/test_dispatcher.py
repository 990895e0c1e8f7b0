"""The dispatcher before the governor: what may not run at the present bits waits, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.limits import Limits
from engine.protocol import BatchDone, Cancel, ChunkFailed, ChunkRequest, DecodeOptions, Loaded, Rung, Shape
from queueing.job import Lane
from worker.assembler import BatchLimits, WaitingChunk, row_of
from worker.dispatcher import PRECISION_WAIT_S, Dispatcher
from worker.governor import Governor, Thresholds

SHAPE = Shape(1, 1, 64, 64, 4, 0)
RUNGS = (Rung(32, 100, 0, 0), Rung(8, 30, 0, 0))


class Keeper:
    """Ready, with one model, and it takes note of what it is told to send."""

    ready = True
    device = None

    def __init__(self, bits: int) -> None:
        self.loaded = {"m": Loaded("m", 0.0, 0, bits, 384, ("en",), False, SHAPE, RUNGS)}
        self.sent: list[Any] = []

    def send(self, command: Any) -> bool:
        self.sent.append(command)
        return True


class Rig:
    def __init__(self, bits: int) -> None:
        self.keeper = Keeper(bits)
        self.governor = Governor(Thresholds(), max_items=16)
        self.governor.engine_up(Limits(1 << 40, 1 << 34, 0, 0, 0))
        self.governor.model_loaded(self.keeper.loaded["m"], 0.0)
        self.refused: list[ChunkFailed] = []
        self.dispatcher = Dispatcher(
            self.keeper,  # type: ignore[arg-type]
            self.governor,
            BatchLimits(),
            more_coming=lambda: False,
            on_dispatch=lambda batch, now: None,
            on_refused=self.refused.append,
        )

    def sent(self) -> list[str]:
        return [chunk.id for command in self.keeper.sent for chunk in command.chunks]


def chunk(name: str, min_bits: int) -> WaitingChunk:
    options = replace(DecodeOptions(), min_bits=min_bits)
    return WaitingChunk(ChunkRequest(name, name, "m", "/s", 0, 16_000, options), Lane.NORMAL, 0.0, 16.0)


def test_a_chunk_that_asks_for_more_bits_lets_others_pass() -> None:
    """At 8 bits a chunk that accepts them goes, one that wants 16 waits, and the governor hears of it."""
    rig = Rig(8)
    rig.dispatcher.offer([chunk("fine", 16), chunk("any", 4)])
    assert rig.dispatcher._decide(1.0) == 2.0
    assert rig.sent() == ["any"]
    assert rig.governor.bits_wanted
    assert rig.refused == []


def test_it_does_not_wait_for_ever() -> None:
    """After a minute it fails as retryable, for another worker to try, and nothing is left of it here."""
    rig = Rig(8)
    rig.dispatcher.offer([chunk("fine", 16)])
    assert rig.dispatcher._decide(PRECISION_WAIT_S) is None or rig.refused
    (failed,) = rig.refused
    assert (failed.chunk, failed.code, failed.retryable) == ("fine", "precision_unavailable", True)
    assert len(rig.dispatcher) == 0


def test_with_enough_bits_it_goes() -> None:
    """At 32 bits everything goes together."""
    rig = Rig(32)
    rig.dispatcher.offer([chunk("fine", 16), chunk("any", 4)])
    rig.dispatcher._decide(1.0)
    assert sorted(rig.sent()) == ["any", "fine"]
    assert not rig.governor.bits_wanted


def test_nothing_is_sent_after_a_broken_step() -> None:
    """A slot that a failed step has freed is not filled until a batch is told to be over, or the engine is gone."""
    rig = Rig(32)
    rig.dispatcher.offer([chunk("a", 4), chunk("b", 4)])
    rig.dispatcher._decide(1.0)
    for revive in (lambda: rig.dispatcher.batch_done(BatchDone(1, 1.0)), rig.dispatcher.engine_gone):
        sent = len(rig.keeper.sent)
        rig.dispatcher.step_failed("a")
        rig.dispatcher.offer([chunk(f"next-{sent}", 4)])
        rig.dispatcher._decide(1.0)
        assert len(rig.keeper.sent) == sent
        revive()
        rig.dispatcher._decide(1.0)
        assert len(rig.keeper.sent) == sent + 1


def test_a_wide_search_counts_by_its_lines() -> None:
    """Memory that has room for sixteen plain rows holds fewer searches of sixteen lines."""
    rig = Rig(32)
    rig.governor.model_loaded(
        replace(rig.keeper.loaded["m"], model="w", shape=Shape(4, 4, 384, 51_864, 4, 2)), 0.0
    )
    rig.governor.engine_up(Limits(1 << 40, 200 << 20, 0, 0, 0))
    plain = chunk("plain", 4)
    wide = replace(plain.request, options=replace(plain.request.options, beam_size=16))
    assert rig.governor.room("w", row_of(replace(plain, request=wide))) < rig.governor.room(
        "w", row_of(plain)
    )


def cancelled(name: str) -> ChunkFailed:
    return ChunkFailed(name, name, "cancelled", "cancelled", False)


def test_what_is_called_back_waits_again() -> None:
    """A chunk that the engine returns is sent anew; one that nobody wants any more, or that ran after all, is not."""
    rig = Rig(32)
    rig.dispatcher.offer([chunk(name, 4) for name in "abc"])
    rig.dispatcher._decide(1.0)
    rig.dispatcher.call_back(["a", "b", "c", "unknown"])
    rig.dispatcher.call_back(["a"])
    rig.dispatcher.withdraw(["b"])
    rig.dispatcher.answered("c")
    asked = [command.chunks for command in rig.keeper.sent if isinstance(command, Cancel)]
    assert asked == [("a", "b", "c"), ("b",)]
    assert rig.dispatcher.came_back(cancelled("a"))
    assert not rig.dispatcher.came_back(cancelled("b"))
    assert not rig.dispatcher.came_back(cancelled("c"))
    rig.keeper.sent.clear()
    rig.dispatcher._decide(2.0)
    assert rig.sent() == ["a"]


def test_a_chunk_that_fails_while_it_is_called_back_has_failed() -> None:
    """Only an answer that it was cancelled says that a chunk has not run."""
    rig = Rig(32)
    rig.dispatcher.offer([chunk("a", 4)])
    rig.dispatcher._decide(1.0)
    rig.dispatcher.call_back(["a"])
    assert not rig.dispatcher.came_back(replace(cancelled("a"), code="numeric"))


def test_what_was_withdrawn_is_not_called_back() -> None:
    """A chunk that nobody waits for leaves the engine, and does not wait here for nobody."""
    rig = Rig(32)
    rig.dispatcher.offer([chunk("a", 4)])
    rig.dispatcher._decide(1.0)
    rig.dispatcher.withdraw(["a"])
    rig.dispatcher.call_back(["a"])
    assert [command.chunks for command in rig.keeper.sent if isinstance(command, Cancel)] == [("a",)]
    assert not rig.dispatcher.came_back(cancelled("a"))
    assert len(rig.dispatcher) == 0
