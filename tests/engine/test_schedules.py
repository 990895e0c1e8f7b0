"""Any order of joining, any slots, any turns: what a chunk gives is what it gives alone (invariant I8).

The model is a small Whisper of random weights, so that many schedules can be played; sessions over real weights are in
``test_session.py``. How the encoder is interrupted has more tests in ``test_giving_way.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.protocol import ChunkDone, ChunkFailed
from engine.stepping import Schedule, always, never

CLOSE = 1e-3
"""Choices whose two best logits lie within this may fall either way; they are counted."""


@dataclass(frozen=True)
class Spec:
    """A kind of chunk."""

    start: float
    seconds: float
    options: tuple[tuple[str, Any], ...]


SPECS = (
    Spec(0, 2.0, (("max_tokens", 9),)),
    Spec(1, 7.5, (("max_tokens", 12), ("temperatures", (0.0,)))),
    Spec(3, 0.2, (("max_tokens", 3), ("timestamps", False))),
    Spec(2, 4.0, (("max_tokens", 7), ("prompt", "words that came before"))),
    Spec(5, 11.0, (("max_tokens", 10), ("temperatures", (0.0, 0.4)))),
    Spec(0, 5.0, (("max_tokens", 8), ("temperatures", (0.6,)))),
    Spec(4, 3.0, (("max_tokens", 6), ("temperatures", (0.0,)), ("beam_size", 3))),
    Spec(1, 2.5, (("max_tokens", 6), ("temperatures", (0.5,)), ("best_of", 2), ("words", True))),
)


@dataclass(frozen=True)
class Heard:
    """What a chunk gave, and how many of its choices were close."""

    outcome: Any
    close: int


@pytest.fixture(scope="module")
def alone() -> dict[int, Heard]:
    """What each kind of chunk gave alone, filled as it is asked for."""
    return {}


@pytest.fixture
def play(small: Any, tokenizer: Any, ask: Any, clip: Any) -> Iterator[Any]:
    """Plays a schedule: chunks that join before given steps. Returns what each gave."""
    from engine.whisper.session import WhisperSession

    def run(
        joining: list[tuple[int, int]],
        schedule: Schedule,
        cancelled: dict[int, int] | None = None,
        urgent: Collection[int] = (),
        pause_every: int = 0,
    ) -> dict[int, Heard]:
        """*joining*: (step, spec) of each chunk; *cancelled*: step at which one is taken out; *urgent*: which are;
        *pause_every*: of so many steps one gives way as soon as it can."""
        session = WhisperSession(small, tokenizer, schedule)
        close: list[int] = [0]
        choose = session._rules.choose

        def watching(logits: Any, tokens: Any, **options: Any) -> Any:
            choice = choose(logits, tokens, **options)
            best = (
                np.partition(logits[np.isfinite(logits)], -2)[-2:]
                if np.isfinite(logits).sum() > 1
                else [0, 9]
            )
            close[0] += abs(best[1] - best[0]) < CLOSE
            return choice

        candidates = session._rules.candidates

        def watching_many(logits: Any, tokens: Any, **options: Any) -> Any:
            found = candidates(logits, tokens, **options)
            apart = np.diff([choice.logprob for choice in found])
            close[0] += int((np.abs(apart) < CLOSE).sum())
            return found

        session._rules.choose = watching  # type: ignore[method-assign]
        session._rules.candidates = watching_many  # type: ignore[method-assign]
        outcomes: list[Any] = []
        step = 0
        left = sorted(enumerate(joining), key=lambda one: one[1][0])
        while left or session.busy:
            while left and left[0][1][0] <= step:
                number, (_, spec) = left.pop(0)
                chosen = SPECS[spec]
                audio = clip("two_cities", chosen.start, chosen.start + chosen.seconds)
                request = ask(str(number), audio, **dict(chosen.options))
                session.add([replace(request, urgent=number in urgent)])
            for number, at in (cancelled or {}).items():
                if at == step:
                    session.cancel([str(number)])
            plan = session.plan()
            if plan is not None:
                assert sum(len(lane.held) for lane in session._lanes) <= schedule.slots
                session.step(always if pause_every and step % pause_every == 0 else never)
            outcomes += session.take()
            step += 1
        assert len({outcome.chunk for outcome in outcomes}) == len(outcomes) == len(joining)
        return {int(outcome.chunk): Heard(outcome, close[0]) for outcome in outcomes}

    yield run


def told(done: ChunkDone) -> tuple[Any, ...]:
    """What must be the same. The probabilities of words hold the last bits of the decoder's sums."""
    segments = [
        replace(segment, words=tuple(replace(word, probability=0.0) for word in segment.words))
        for segment in done.segments
    ]
    return done.text, done.tokens, segments, done.temperature, done.window_s, done.widened


def same(one: ChunkDone, other: ChunkDone) -> bool:
    near = [
        abs(a.probability - b.probability) < 1e-3
        for first, second in zip(one.segments, other.segments, strict=False)
        for a, b in zip(first.words, second.words, strict=False)
    ]
    return told(one) == told(other) and all(near)


schedules = st.builds(
    Schedule,
    slots=st.integers(1, 6),
    encode_s=st.sampled_from([1.0, 40.0, 64.0]),
    encode_beside_s=st.sampled_from([1.0, 30.0]),
    decode_steps=st.integers(0, 5),
    patient_s=st.sampled_from([1.0, 64.0]),
    patient_share=st.sampled_from([0.0, 0.2, 0.9]),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, len(SPECS) - 1)), min_size=1, max_size=7),
    schedules,
    st.dictionaries(st.integers(0, 6), st.integers(0, 40), max_size=2),
    st.sets(st.integers(0, 6)),
    st.sampled_from([0, 1, 3]),
)
def test_any_schedule_gives_what_a_chunk_gives_alone(
    play: Any,
    alone: dict[int, Heard],
    joining: list[tuple[int, int]],
    schedule: Schedule,
    cancelled: dict[int, int],
    urgent: set[int],
    pause_every: int,
) -> None:
    """Whenever rows join, leave or are cancelled, urgent or not, in however few slots, and however often the encoder is
    interrupted: each result is that alone."""
    heard = play(joining, schedule, cancelled, urgent, pause_every)
    close, differing = 0, []
    for number, (_, spec) in enumerate(joining):
        outcome = heard[number].outcome
        if isinstance(outcome, ChunkFailed):
            assert outcome.code == "cancelled" and number in cancelled
            continue
        if spec not in alone:
            alone[spec] = play([(0, spec)], Schedule())[0]
        close += alone[spec].close
        if not same(outcome, alone[spec].outcome):
            differing.append(number)
    assert len(differing) <= close, f"{differing} differ, and {close} choices were close"


class Clock:
    """A step of either lane takes half a second."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_urgent_chunks_have_most_of_the_time(small: Any, tokenizer: Any, ask: Any, clip: Any) -> None:
    """An urgent chunk that comes while others run has its steps at once, and four of five from then on at most."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(patient_share=0.2), clock=Clock())
    long = {"max_tokens": 60, "temperatures": (0.0,)}
    session.add([ask(f"patient{n}", clip("two_cities", n, n + 3.0), **long) for n in range(3)])
    for _ in range(12):
        assert session.plan() is not None
        session.step()
    session.add([replace(ask("urgent", clip("two_cities", 0, 2.0), **long), urgent=True)])
    turns = []
    for _ in range(30):
        turns.append(session.plan().chunks == ("urgent",))
        session.step()
    assert turns[:12] == [True] * 12
    assert 0.15 <= turns[20:].count(False) / len(turns[20:]) <= 0.3


def test_others_do_not_make_up_for_time_without_work(small: Any, tokenizer: Any, ask: Any, clip: Any) -> None:
    """A chunk that is not urgent, and comes after urgent ones have had the engine for long, has a fifth of the steps
    from then on; it has no claim to a fifth of those before."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(patient_share=0.2), clock=Clock())
    long = {"max_tokens": 90, "temperatures": (0.0,)}
    session.add([replace(ask("urgent", clip("two_cities", 0, 3.0), **long), urgent=True)])
    for _ in range(20):
        assert session.plan() is not None
        session.step()
    session.add([ask("patient", clip("two_cities", 3, 6.0), **long)])
    turns = []
    for _ in range(20):
        turns.append(session.plan().chunks == ("patient",))
        session.step()
    assert turns[:5].count(True) <= 1
    assert 0.15 <= turns.count(True) / len(turns) <= 0.3


def test_a_lane_without_a_slot_lets_the_other_go_on(small: Any, tokenizer: Any, ask: Any, clip: Any) -> None:
    """With one slot, held by a chunk that is not urgent, an urgent one waits for it and nothing stands still."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(slots=1))
    session.add([ask("patient", clip("two_cities", 0, 2.0), max_tokens=5, temperatures=(0.0,))])
    while not session.texts():
        assert session.plan() is not None
        session.step()
    session.add([replace(ask("urgent", clip("two_cities", 0, 2.0)), urgent=True)])
    assert session.plan().chunks == ("patient",)
    answered = []
    while session.busy:
        if session.plan() is not None:
            session.step()
        answered += [outcome.chunk for outcome in session.take()]
    assert answered == ["patient", "urgent"]


def test_a_cancelled_row_gives_its_slot_to_the_next(small: Any, tokenizer: Any, ask: Any, clip: Any) -> None:
    """With one slot, a chunk that waits is encoded in the very step after the one that ran is cancelled."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(slots=1))
    session.add([ask(name, clip("two_cities", 0, 2.0)) for name in "ab"])
    while not session.texts():
        assert session.plan() is not None
        session.step()
    plan = session.plan()
    assert (plan.chunks, plan.slots, plan.waiting) == (("a",), 1, 1)
    session.cancel(["a"])
    assert session.plan().chunks == ("b",) and session.plan().kind == "encode"


def test_running_rows_wait_for_one_small_encoder_step_at_most(
    small: Any, tokenizer: Any, ask: Any, clip: Any
) -> None:
    """While urgent rows are decoded, encoder steps hold few window seconds, and decoder steps come between them."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(encode_beside_s=40.0, decode_steps=3))
    first = ask("first", clip("two_cities", 0, 2.0), max_tokens=40, temperatures=(0.0,))
    session.add([replace(first, urgent=True)])
    while not session.texts():
        assert session.plan() is not None
        session.step()
    late = {"max_tokens": 20, "temperatures": (0.0,)}
    session.add(
        [replace(ask(f"late{n}", clip("two_cities", n, n + 2.0), **late), urgent=True) for n in range(6)]
    )
    since = 0
    held_up = []
    while session.busy:
        plan, decoding = session.plan(), bool(session.texts())
        if plan is None:
            continue
        if plan.kind != "encode":
            since += 1
        elif decoding:
            held_up.append((plan.padded_s, since))
        if plan.kind == "encode":
            since = 0
        session.step()
    assert len(held_up) >= 3
    assert all(padded <= 40.0 for padded, _ in held_up)
    assert all(steps >= 3 for _, steps in held_up[1:])


def test_patient_rows_are_encoded_before_they_are_decoded(
    small: Any, tokenizer: Any, ask: Any, clip: Any
) -> None:
    """Rows that nobody waits for are decoded together: one that joins late is encoded before the others go on."""
    from engine.whisper.session import WhisperSession

    session = WhisperSession(small, tokenizer, Schedule(encode_beside_s=1.0, patient_s=1.0, decode_steps=3))
    options = {"max_tokens": 40, "temperatures": (0.0,)}
    session.add([ask("first", clip("two_cities", 0, 2.0), **options)])
    while not session.texts():
        assert session.plan() is not None
        session.step()
    session.add([ask(f"late{n}", clip("two_cities", n, n + 2.0), **options) for n in range(3)])
    encoded: list[str] = []
    while len(encoded) < 3:
        plan = session.plan()
        assert plan.kind == "encode"
        encoded += plan.chunks
        session.step()
    assert encoded == ["late0", "late1", "late2"]


def test_the_next_spectrogram_is_made_beside_the_encoder(
    small: Any, tokenizer: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one chunk is encoded, a thread makes the spectrogram of the next."""
    from engine.whisper import audio
    from engine.whisper.session import WhisperSession

    plain, encode, made, seen = audio.log_mel, small.encoding, threading.Event(), []

    def log_mel(samples: Any, n_mels: int) -> Any:
        found = plain(samples, n_mels)
        if threading.current_thread() is not threading.main_thread() and len(samples) == 3 * 16_000:
            made.set()
        return found

    def slow(mel: Any) -> Any:
        seen.append(made.wait(30))
        return encode(mel)

    monkeypatch.setattr(audio, "log_mel", log_mel)
    monkeypatch.setattr(small, "encoding", slow)
    session = WhisperSession(small, tokenizer, Schedule(patient_s=1.0))
    session.add(
        [ask(f"{s}", clip("two_cities", 0, s), max_tokens=2, temperatures=(0.0,)) for s in (2.0, 3.0)]
    )
    assert session.plan().kind == "encode"
    session.step()
    assert seen == [True]


def test_half_precision_gives_the_choices_of_float32(mlx: Any, weights: Any, small: Any) -> None:
    """In MLX's own operations and float16, as on Metal and CUDA, a batch gives the logits of float32."""
    from engine.whisper.kernels import DeviceKernels
    from engine.whisper.model import Whisper

    config, variables = weights
    halves = {name: array.astype(mlx.float16) for name, array in variables.items()}
    half = Whisper(config, halves, DeviceKernels())
    noise = np.random.Generator(np.random.Philox(4)).standard_normal((2, 256, 80)).astype(np.float32) * 0.3
    tokens = [[50257, 50362, 440], [50257, 50362, 441]]
    logits = [
        model.decode(tokens, model.cache(model.encode(mlx.array(noise))), [1, 2]) for model in (half, small)
    ]
    assert (half.bits, logits[0].dtype) == (16, np.float32)
    assert np.abs(logits[0] - logits[1]).max() < 0.02 * np.std(logits[1])
    assert (logits[0].argmax(axis=2) == logits[1].argmax(axis=2)).all()
