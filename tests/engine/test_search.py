"""Beams, samples and hot words: what each does alone it does in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import ChunkDone
from engine.whisper import rules
from engine.whisper.search import Beam, Line, Sampling

UNTIMED = settings(deadline=None, max_examples=40)
"""No assertion on wall time: the machine may be busy."""

END = 0
VOCABULARY = 5


class Plain:
    """Rules that forbid nothing, so that a search can be checked against all there is."""

    def choose(
        self, logits: Any, tokens: Any, *, temperature: float, generator: Any, **_: Any
    ) -> rules.Choice:
        return rules._pick(logits, 0, temperature, generator)

    def candidates(self, logits: Any, tokens: Any, *, count: int, **_: Any) -> list[rules.Choice]:
        order = np.argsort(-logits, kind="stable")[:count]
        return [rules.Choice(int(i), float(logits[i]) - rules._logsumexp(logits)) for i in order]


def network(seed: int) -> Callable[[tuple[int, ...]], Any]:
    """Logits that depend on all tokens before, the same each time."""

    def logits(tokens: tuple[int, ...]) -> Any:
        draw = np.random.Generator(np.random.Philox(hash((seed, tokens)) & (2**63 - 1)))
        return (2 * draw.standard_normal(VOCABULARY)).astype(np.float32)

    return logits


def decode(search: Any, logits: Callable[[tuple[int, ...]], Any]) -> Line:
    """Run a search to its end, with caches that are reordered as it says."""
    caches = [()]
    for _ in range(100):
        parents = search.advance(np.stack([logits(cache) for cache in caches]))
        if not parents:
            return search.best()
        assert len(parents) == len(search.lines)
        for parent, line in zip(parents, search.lines, strict=True):
            assert line.tokens[:-1] == caches[parent], "a line goes on from the cache that it names"
        caches = [line.tokens for line in search.lines]
    raise AssertionError("the search does not end")


def greedy(cap: int) -> Sampling:
    return Sampling(Plain(), timestamps=False, temperature=0.0, generators=[None], cap=cap, end=END)


def beam(width: int, cap: int) -> Beam:
    return Beam(Plain(), width=width, timestamps=False, cap=cap, end=END)


def everything(logits: Any, cap: int) -> list[Line]:
    """Every line there is, to its end or to the cap."""
    going, over = [Line()], []
    while going:
        line = going.pop()
        for choice in Plain().candidates(logits(line.tokens), (), count=VOCABULARY):
            longer = line.longer(choice, END)
            (over if longer.ended or len(longer.tokens) >= cap else going).append(longer)
    return over


@UNTIMED
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_a_beam_of_one_is_greedy(seed: int, cap: int) -> None:
    """One line that takes the likeliest token each time is what a beam of one finds."""
    assert decode(beam(1, cap), network(seed)) == decode(greedy(cap), network(seed))


@UNTIMED
@given(st.integers(0, 10_000))
def test_a_beam_as_wide_as_all_lines_finds_the_best(seed: int) -> None:
    """Where nothing is cut away, the result is the best of the lines that ended, by the mean of their tokens."""
    cap = 3
    ended = [line for line in everything(network(seed), cap) if line.ended]
    found = decode(beam(VOCABULARY**cap, cap), network(seed))
    assert found.score >= max(line.score for line in ended) - 1e-6


@UNTIMED
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 6))
def test_lines_hold_their_own_sums(seed: int, width: int, cap: int) -> None:
    """A line's total is the sum over its own tokens, whatever lines it has left behind."""
    logits = network(seed)
    found = decode(beam(width, cap), logits)
    total, at = 0.0, ()
    for token in [*found.tokens, *([END] if found.ended else [])]:
        scores = logits(at)
        total += float(scores[token]) - rules._logsumexp(scores)
        at = (*at, token)
    assert found.total == pytest.approx(total, abs=1e-5) and len(found.tokens) <= cap


@UNTIMED
@given(st.integers(0, 1000), st.integers(2, 5))
def test_best_of_is_the_likeliest_of_its_samples(seed: int, count: int) -> None:
    """Several samples at once are those that each generator draws alone, and the likeliest is taken."""

    def sample(lines: list[int]) -> Line:
        draws = [np.random.Generator(np.random.Philox(line)) for line in lines]
        search = Sampling(Plain(), timestamps=False, temperature=1.0, generators=draws, cap=6, end=END)
        return decode(search, network(seed))

    alone = [sample([line]) for line in range(count)]
    together = sample(list(range(count)))
    sound = [line for line in alone if not line.looped] or alone
    assert together.score == max(line.score for line in sound)


def test_a_loop_is_never_the_result_where_there_is_another() -> None:
    """A line that repeats itself leaves the beam, though it is the likeliest."""

    def looping(tokens: tuple[int, ...]) -> Any:
        logits = np.full(VOCABULARY, -3.0, np.float32)
        logits[1] = 3.0
        logits[END] = 0.0 if len(tokens) > 2 else -3.0
        return logits

    assert decode(greedy(40), looping).looped
    found = decode(beam(3, 40), looping)
    assert found.ended and not found.looped


# --- over real weights and real speech ------------------------------------------------------------


@pytest.fixture
def varied(ask: Any, clip: Any) -> list[Any]:
    """Chunks of unlike lengths and searches."""
    hot = ("Nagg", "Nell", "Sainsbury")
    return [
        ask("beam", clip("two_cities", 0, 4), beam_size=4),
        ask("greedy", clip("beckett", 0, 3)),
        ask("samples", clip("endgame_nagg_nell", 0, 3), temperatures=(0.6,), best_of=3, seed=7),
        ask("hot", clip("endgame_nagg_nell", 5, 9), hot_words=hot, prompt="A play.", words=True),
        ask("both", clip("beckett", 4, 8), beam_size=2, hot_words=("Beckett",), words=True, timestamps=False),
    ]


def test_a_search_in_a_batch_is_the_search_alone(session: Any, run: Any, varied: list[Any]) -> None:
    """Beams, samples, hot words and words give in a batch what they give alone, to the token and to the frame."""
    together = run(session, varied)
    backwards = run(session, varied[::-1])
    for request in varied:
        alone = run(session, [request])[request.id]
        assert isinstance(alone, ChunkDone) and alone.text
        for other in (together[request.id], backwards[request.id]):
            assert (other.text, other.tokens) == (alone.text, alone.tokens)
            assert len(other.segments) == len(alone.segments)
            for ours, theirs in zip(other.segments, alone.segments, strict=True):
                assert [w.text for w in ours.words] == [w.text for w in theirs.words]
                moments = [(w.start, w.end) for w in theirs.words]
                assert [(w.start, w.end) for w in ours.words] == [
                    pytest.approx(m, abs=0.021) for m in moments
                ]


def test_rows_of_a_search_join_and_leave(session: Any, run: Any, varied: list[Any]) -> None:
    """A beam that others join and leave in the middle ends as if it had been alone; a cancelled one takes its lines."""
    expected = {r.id: run(session, [r])[r.id].text for r in varied}
    coming, outcomes, steps = list(varied), [], 0
    while session.busy or coming:
        if coming and steps % 5 == 0:
            session.add([coming.pop(0)])
        if steps == 14:
            session.cancel(["samples"])
        if session.plan() is not None:
            session.step()
        steps += 1
        outcomes += session.take()
    found = {o.chunk: o.text for o in outcomes if isinstance(o, ChunkDone)}
    assert set(expected) - set(found) == {"samples"}
    assert all(expected[name] == text for name, text in found.items())


def test_a_seed_tells_samples_apart(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """The same seed draws the same text, another seed another one."""
    one = clip("endgame_nagg_nell", 0, 3)
    asked = [ask(f"s{seed}", one, temperatures=(1.0,), max_tokens=8, seed=seed) for seed in (0, 1)]
    first, second = run(session, asked), run(session, asked)
    texts = [first[r.id].text for r in asked]
    assert [second[r.id].text for r in asked] == texts and texts[0] != texts[1]


def test_hot_words_change_a_spelling(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """Words that are named beforehand are heard as they are written."""
    one = clip("beckett", 0, 3)
    asked = [ask("plain", one), ask("hot", one, hot_words=("Eva Tride",) * 3)]
    found = run(session, asked)
    assert found["hot"].text != found["plain"].text


def test_words_lie_in_their_segments(session: Any, run: Any, ask: Any, clip: Any) -> None:
    """Over chunks with several segments, words rise, lie in their segments, and joined they are its text."""
    asked = [ask(f"w{i}", clip("two_cities", 9 * i, 9 * i + 8.3), words=True) for i in range(2)]
    found = run(session, asked)
    for request in asked:
        done = found[request.id]
        clock = 0.0
        assert done.segments
        for segment in done.segments:
            assert "".join(w.text for w in segment.words) == segment.text
            for word in segment.words:
                assert clock <= word.start <= word.end <= segment.end <= request.duration_s
                assert 0 <= word.probability <= 1
                clock = word.end


def test_the_devices_own_form_finds_the_same(
    mlx: Any, session: Any, tokenizer: Any, tiny_folder: Any, run: Any, ask: Any, clip: Any
) -> None:
    """MLX's own operations, as on Metal and CUDA, give the words and times that the host's form gives, with a beam."""
    from engine.whisper.kernels import DeviceKernels
    from engine.whisper.model import load_model
    from engine.whisper.session import WhisperSession

    theirs = WhisperSession(load_model(tiny_folder, mlx.float32, DeviceKernels()), tokenizer)
    asked = [
        ask("a", clip("beckett", 0, 3), beam_size=3, words=True),
        ask("b", clip("beckett", 4, 6), words=True),
    ]
    ours, other = run(session, asked), run(theirs, asked)
    for name in ("a", "b"):
        words = [[w for s in found[name].segments for w in s.words] for found in (ours, other)]
        assert [w.text for w in words[0]] == [w.text for w in words[1]] and words[0]
        assert [w.start for w in words[0]] == pytest.approx([w.start for w in words[1]], abs=0.041)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 0},
        {"beam_size": 17},
        {"best_of": 0},
        {"best_of": 99},
        {"hot_words": ("Nebuchadnezzar",) * 60},
    ],
)
def test_searches_out_of_bounds_are_refused(
    session: Any, run: Any, ask: Any, clip: Any, options: dict[str, Any]
) -> None:
    """A search wider than the batch may be, or hot words that leave no room, fail their chunk for good."""
    found = run(session, [ask("bad", clip("beckett", 0, 2), **options)])["bad"]
    assert (found.code, found.retryable) == ("unsupported_option", False)
