"""Recognizers of mlx-audio that are not Whisper, through the real engine process: real classes, tiny random weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.handle import EngineProcess
from engine.models import BadSource, ModelSource
from engine.protocol import (
    SAMPLE_RATE,
    BatchDone,
    Cancel,
    ChunkDone,
    ChunkFailed,
    ChunkRequest,
    DecodeOptions,
    Dispatch,
    Load,
    Loaded,
    LoadFailed,
    Partial,
    StepDone,
    StepStarted,
)
from engine.recognizers.families import family_named
from engine.recognizers.session import RecognizerSession
from tests.support import tiny_models

PATIENCE_S = 120.0
ONCE = (0.0,)
"""Random weights repeat themselves: without temperatures to climb, the first decode is the answer."""


@pytest.fixture(scope="module")
def folders(mlx: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each family, and the other decoders of Parakeet."""
    root = tmp_path_factory.mktemp("recognizers")
    made = {name: build(mlx, root / name) for name, build in tiny_models.BUILDERS.items()}
    made["rnnt"] = tiny_models.parakeet(mlx, root / "rnnt", "rnnt")
    made["ctc"] = tiny_models.parakeet(mlx, root / "ctc", "ctc")
    return made


def source(name: str, folder: Path) -> str:
    return f"{'parakeet' if name in ('rnnt', 'ctc') else name}:path:{folder}"


class Engine:
    """A real engine process with these models, and what it has sent."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.events: list[Any] = []
        self._stream = process.events()

    async def until(self, *kinds: type) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            async for event in self._stream:
                self.events.append(event)
                if isinstance(event, kinds):
                    return event
        raise AssertionError(f"the engine ended: {await self.process.wait()}")

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def load(self, alias: str) -> Any:
        await self.process.send(Load(alias))
        return await self.until(Loaded, LoadFailed)

    async def ask(self, *requests: ChunkRequest) -> dict[str, Any]:
        """Outcomes of one batch."""
        await self.process.send(Dispatch(1, requests))
        await self.until(BatchDone)
        return {event.chunk: event for event in self.events if isinstance(event, ChunkDone | ChunkFailed)}


@asynccontextmanager
async def engine(folders: dict[str, Path], cache_dir: Path) -> Any:
    aliases = {name: source(name, folder) for name, folder in folders.items()}
    config = EngineConfig(aliases=aliases, cache_dir=str(cache_dir), partial_interval_s=0.0)
    process = await EngineProcess.spawn(config)
    try:
        yield Engine(process)
    finally:
        await process.stop(5)


def chunk(name: str, model: str, clip: Any, **options: Any) -> ChunkRequest:
    told = DecodeOptions(**{"temperatures": ONCE, **options})
    return ChunkRequest(name, f"job-{name}", model, clip.path, 0, clip.samples, told)


def samples_of(clip: Any) -> Any:
    return (np.fromfile(clip.path, "<i2") / 32768).astype(np.float32)


def generated(mlx: Any, folder: Path, family: str, clip: Any, **options: Any) -> Any:
    """What the model's own ``generate`` makes of a clip."""
    from mlx_audio.stt.utils import load_model

    model = load_model(folder, model_type=family, model_name_parts=[])
    audio = mlx.array(samples_of(clip))
    if family != "qwen3_asr":
        options["dtype"] = mlx.float32
    return model.generate(audio, **options)


def test_the_text_is_the_models_own(mlx: Any, folders: dict[str, Path], cache_dir: Path, clip: Any) -> None:
    """Of every family, a batch's texts are those of the model's own generate, and each step has its sample."""
    clips = [clip("beckett", 0, 2), clip("beckett", 3, 5), clip("two_cities", 0, 2.5)]

    async def story() -> dict[str, Any]:
        async with engine(folders, cache_dir) as e:
            found: dict[str, Any] = {}
            for name in folders:
                loaded = await e.load(name)
                assert isinstance(loaded, Loaded) and loaded.bits == 32 and loaded.weights_bytes > 0
                found |= await e.ask(*(chunk(f"{name}{i}", name, one) for i, one in enumerate(clips)))
            steps = [step for step in e.of(StepDone) if step.kind != "load"]
            assert all(step.sample.active > 0 for step in steps)
            assert {row for step in steps for row in step.rows} == set(found)
            started = [event for event in e.of(StepStarted) if event.kind == "encode"]
            assert started and all(event.deadline_s > 30 for event in started)
            return found

    found = asyncio.run(story())
    for name, folder in folders.items():
        for i, one in enumerate(clips):
            done = found[f"{name}{i}"]
            assert isinstance(done, ChunkDone), done
            seconds = one.samples / SAMPLE_RATE
            cap = 32 + int(np.ceil(16 * seconds))
            theirs = generated(mlx, folder, source(name, folder).split(":")[0], one, max_tokens=cap)
            assert done.text == theirs.text.strip()
            assert all(0 <= s.start <= s.end <= seconds for s in done.segments)
        assert any(found[f"{name}{i}"].text for i in range(len(clips)))


def test_equal_lengths_share_a_call(mlx: Any, folders: dict[str, Path], cache_dir: Path, clip: Any) -> None:
    """Parakeet's rows of one length run in one call, each as it would alone; another length runs by itself."""
    requests = [
        chunk("a", "parakeet", clip("beckett", 0, 2)),
        chunk("b", "parakeet", clip("beckett", 3, 5)),
        chunk("long", "parakeet", clip("beckett", 0, 3)),
    ]

    async def story() -> None:
        async with engine(folders, cache_dir) as e:
            await e.load("parakeet")
            together = await e.ask(*requests)
            assert {step.rows for step in e.of(StepDone) if step.rows} == {("a", "b"), ("long",)}
            for request in requests:
                alone = (await e.ask(request))[request.id]
                assert (alone.text, alone.tokens) == (together[request.id].text, together[request.id].tokens)

    asyncio.run(story())


def test_words_where_the_model_gives_them(folders: dict[str, Path], cache_dir: Path, clip: Any) -> None:
    """Parakeet's words have rising times within their segment, and joined they are its text; Moonshine has none."""

    async def story() -> None:
        async with engine(folders, cache_dir) as e:
            for name in ("parakeet", "moonshine"):
                await e.load(name)
            done = (await e.ask(chunk("p", "parakeet", clip("beckett", 0, 4), words=True)))["p"]
            assert done.segments
            for segment in done.segments:
                moments = [moment for word in segment.words for moment in (word.start, word.end)]
                assert moments == sorted(moments)
                assert segment.start <= moments[0] <= moments[-1] <= segment.end
                assert "".join(word.text for word in segment.words) == segment.text
            refused = (await e.ask(chunk("m", "moonshine", clip("beckett", 0, 2), words=True)))["m"]
            assert (refused.code, refused.retryable) == ("unsupported_option", False)
            assert "words" in refused.message

    asyncio.run(story())


def test_tokens_stream_as_partial_text(folders: dict[str, Path], cache_dir: Path, clip: Any) -> None:
    """Qwen3-ASR's text grows in events, up to a token cap that is obeyed, and each token is a step."""

    async def story() -> None:
        async with engine(folders, cache_dir) as e:
            await e.load("qwen3_asr")
            one = clip("beckett", 0, 2)
            done = (await e.ask(chunk("q", "qwen3_asr", one, max_tokens=12, language="en")))["q"]
            assert done.tokens == 12 and done.language == "en" and done.avg_logprob < 0
            partials = [event.text for event in e.of(Partial)]
            assert len(partials) >= 3 and [len(text) for text in partials] == sorted(
                {len(t) for t in partials}
            )
            assert done.text.startswith(partials[0].rstrip("\ufffd"))
            kinds = [step.kind for step in e.of(StepDone) if step.rows]
            assert kinds[0] == "encode" and set(kinds[1:]) == {"decode"}

    asyncio.run(story())


def test_a_cancelled_chunk_leaves_between_two_tokens(
    folders: dict[str, Path], cache_dir: Path, clip: Any
) -> None:
    """Cancelled in the middle, a chunk is answered so; those behind it are done."""

    async def story() -> None:
        async with engine(folders, cache_dir) as e:
            await e.load("qwen3_asr")
            first = chunk("gone", "qwen3_asr", clip("two_cities", 0, 12))
            second = chunk("kept", "qwen3_asr", clip("beckett", 0, 2), max_tokens=3)
            await e.process.send(Dispatch(1, (first, second)))
            await e.until(Partial)
            await e.process.send(Cancel(("gone",)))
            await e.until(BatchDone)
            (failed,) = e.of(ChunkFailed)
            assert (failed.chunk, failed.code) == ("gone", "cancelled")
            assert [done.chunk for done in e.of(ChunkDone)] == ["kept"]

    asyncio.run(story())


# --- without a process ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sessions(mlx: Any, folders: dict[str, Path]) -> Callable[[str], RecognizerSession]:
    from engine.recognizers.load import load_recognizer

    loaded: dict[str, RecognizerSession] = {}

    def make(name: str) -> RecognizerSession:
        if name not in loaded:
            family = family_named(source(name, folders[name]).split(":")[0])
            assert family is not None
            model = load_recognizer(folders[name], family, mlx.float32)
            loaded[name] = RecognizerSession(model.recognizer, family, model.bits)
        return loaded[name]

    return make


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("parakeet", {"max_tokens": 5}, "unsupported_option"),
        ("parakeet", {"language": "en"}, "unsupported_language"),
        ("parakeet", {"prompt": "Names"}, "unsupported_option"),
        ("parakeet", {"temperatures": (0.2,)}, "unsupported_option"),
        ("moonshine", {"hot_words": ("Nagg",)}, "unsupported_option"),
        ("moonshine", {"beam_size": 2}, "unsupported_option"),
        ("qwen3_asr", {"best_of": 2}, "unsupported_option"),
        ("qwen3_asr", {"words": True}, "unsupported_option"),
        ("qwen3_asr", {"language": "de"}, "unsupported_language"),
        ("qwen3_asr", {"task": "translate"}, "unsupported_option"),
    ],
)
def test_what_a_family_cannot_honour_is_refused(
    sessions: Any, run: Any, clip: Any, name: str, options: dict[str, Any], code: str
) -> None:
    """An option that the family has not fails its chunk for good, and says which."""
    found = run(sessions(name), [chunk("bad", name, clip("beckett", 0, 1), **options)])["bad"]
    assert (found.code, found.retryable) == (code, False)


def test_prompts_and_hot_words_change_what_is_said(sessions: Any, run: Any, clip: Any) -> None:
    """Qwen3-ASR is given its context: the likelihood of what it says is another with it, each time the same."""
    one = clip("beckett", 0, 2)
    asked = [
        chunk("plain", "qwen3_asr", one, max_tokens=6),
        chunk("prompt", "qwen3_asr", one, max_tokens=6, prompt="Nagg and Nell"),
        chunk("hot", "qwen3_asr", one, max_tokens=6, hot_words=("Nagg",)),
    ]
    found = run(sessions("qwen3_asr"), asked)
    again = run(sessions("qwen3_asr"), asked[::-1])
    scores = {name: done.avg_logprob for name, done in found.items()}
    assert len({round(score, 4) for score in scores.values()}) == 3
    assert {name: done.avg_logprob for name, done in again.items()} == scores


def test_what_repeats_itself_is_tried_at_the_next_temperature(sessions: Any, run: Any, clip: Any) -> None:
    """A text that says one thing for ever climbs to the next temperature; its draws hang on the seed alone."""
    session = sessions("qwen3_asr")
    one = clip("beckett", 0, 4)
    asked = [chunk(f"s{seed}", "qwen3_asr", one, temperatures=(0.0, 1.0), seed=seed) for seed in (0, 1)]
    both = run(session, asked)
    assert [both[name].temperature for name in ("s0", "s1")] == [1.0, 1.0]
    assert both["s0"].text != both["s1"].text
    assert run(session, asked[::-1])["s0"].text == both["s0"].text


@pytest.mark.parametrize("name", ["parakeet", "rnnt", "ctc", "moonshine", "qwen3_asr"])
def test_a_tenth_of_a_second_is_recognized(sessions: Any, run: Any, clip: Any, name: str) -> None:
    """Less audio than an encoder has a frame for is done, with times inside it."""
    asked = [chunk(f"s{i}", name, clip("beckett", 1, 1 + length)) for i, length in enumerate((0.01, 0.1))]
    for request, done in zip(asked, run(sessions(name), asked).values(), strict=True):
        assert isinstance(done, ChunkDone)
        assert all(0 <= s.start <= s.end <= request.duration_s for s in done.segments)


def test_abandoned_chunks_are_given_back(sessions: Any, clip: Any) -> None:
    """All that waits or runs is handed back, and the session is good for the next batch."""
    session = sessions("qwen3_asr")
    asked = [chunk("a", "qwen3_asr", clip("beckett", 0, 2)), chunk("b", "qwen3_asr", clip("beckett", 0, 3))]
    session.add(asked)
    session.plan()
    session.step()
    assert {request.id for request in session.abandon()} == {"a", "b"}
    assert not session.busy and session.take() == []


def test_a_missing_spool_fails_alone(sessions: Any, run: Any, clip: Any) -> None:
    """A chunk whose file is gone may be tried again; its neighbour is done."""
    good = chunk("good", "moonshine", clip("beckett", 0, 1))
    found = run(sessions("moonshine"), [replace(good, id="gone", path="/nowhere.raw"), good])
    assert (found["gone"].code, found["gone"].retryable) == ("bad_spool", True)
    assert isinstance(found["good"], ChunkDone)


def test_sources_name_their_family() -> None:
    """A family stands before the source; one that mlx-audio has not, or over what is Whisper's alone, is refused."""
    parsed = ModelSource.parse("qwen3_asr:hf:org/name@v1")
    assert (parsed.family, parsed.kind, parsed.revision) == ("qwen3_asr", "hf", "v1")
    assert str(parsed) == "qwen3_asr:hf:org/name@v1"
    assert ModelSource.parse("path:/x").family == "whisper"
    assert ModelSource.parse("granite_speech:path:/x").family == "granite_speech"
    for text in ("nothing:path:/x", "whisper:path:/x", "parakeet:ct2:/x", "parakeet:parakeet:path:/x"):
        with pytest.raises(BadSource):
            ModelSource.parse(text)


@pytest.fixture
def spoiled(folders: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., Path]]:
    def make(**files: str) -> Path:
        folder = tmp_path / "spoiled"
        shutil.copytree(folders["moonshine"], folder)
        for name, text in files.items():
            (folder / f"{name}.json").write_text(text)
        return folder

    yield make


def test_a_folder_with_code_of_its_own_is_refused(mlx: Any, spoiled: Any) -> None:
    """What would run code from the model's folder is never loaded."""
    from engine.recognizers.load import BadRecognizer, load_recognizer

    folder = spoiled(tokenizer_config=json.dumps({"auto_map": {"AutoTokenizer": ["x.Y", None]}}))
    with pytest.raises(BadRecognizer, match="asks for code"):
        load_recognizer(folder, family_named("moonshine"), mlx.float32)


def test_missing_weights_are_an_error(mlx: Any, spoiled: Any) -> None:
    """mlx-audio leaves what is missing at random; here it is refused, and named."""
    from engine.recognizers.load import BadRecognizer, load_recognizer

    folder = spoiled()
    weights = mlx.load(str(folder / "model.safetensors"))
    del weights["encoder.conv2.bias"]
    mlx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(BadRecognizer, match=r"conv2\.bias"):
        load_recognizer(folder, family_named("moonshine"), mlx.float32)


def test_quantized_weights_are_unpacked_on_the_cpu(
    mlx: Any, folders: dict[str, Path], tmp_path: Path, run: Any, clip: Any
) -> None:
    """Packed layers become dense ones of the same numbers: the text is that of the packed model."""
    from mlx import nn
    from mlx.utils import tree_flatten
    from mlx_audio.stt.utils import load_model

    from engine.recognizers.load import load_recognizer

    family = family_named("qwen3_asr")
    assert family is not None
    packed = load_model(folders["qwen3_asr"], model_type="qwen3_asr", model_name_parts=[])
    chosen = lambda name, layer: hasattr(layer, "to_quantized") and not name.startswith("audio_tower")  # noqa: E731
    nn.quantize(packed._model, group_size=32, bits=8, class_predicate=chosen)
    folder = tmp_path / "packed"
    shutil.copytree(folders["qwen3_asr"], folder)
    mlx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(packed.parameters())))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 32, "bits": 8}}))
    loaded = load_recognizer(folder, family, mlx.float32)
    assert loaded.bits == 8
    one = clip("beckett", 0, 2)
    theirs = packed.generate(mlx.array(samples_of(one)), max_tokens=10).text.strip()
    ours = run(RecognizerSession(loaded.recognizer, family, 8), [chunk("q", "qwen3_asr", one, max_tokens=10)])
    assert ours["q"].text == theirs
    assert not any(isinstance(m, nn.QuantizedLinear) for m in loaded.recognizer._model._model.modules())
