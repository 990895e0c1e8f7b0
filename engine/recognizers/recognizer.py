"""A loaded recognizer, and how one of each form is run: in steps between which it can be stopped.

Everything goes through mlx-audio's own API. The audio of an item is never padded to that of another, so that what is
heard depends on the item alone (invariant I8).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine import languages
from engine.protocol import SAMPLE_RATE, DecodeOptions, Segment, Word
from engine.whisper.words import clamped

FloatArray = npt.NDArray[np.float32]

MIN_SAMPLES = SAMPLE_RATE // 2
"""Half a second: with less some encoders have no frame left."""


@dataclass(frozen=True, slots=True)
class Item:
    """Audio to be recognized."""

    samples: FloatArray
    """16 kHz, -1 to 1; at least :data:`MIN_SAMPLES`."""
    duration_s: float
    """Seconds of them that are the chunk's own."""
    options: DecodeOptions
    temperature: float
    cap: int
    """Most tokens, where the family has tokens."""

    @classmethod
    def of(cls, samples: FloatArray, options: DecodeOptions, cap: int) -> Item:
        """An item for a first try; silence fills up what is too short for the models' convolutions."""
        missing = max(0, MIN_SAMPLES - len(samples))
        filled = np.pad(samples, (0, missing)) if missing else samples
        return cls(filled, len(samples) / SAMPLE_RATE, options, options.temperatures[0], cap)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a recognizer says of one item."""

    text: str
    segments: tuple[Segment, ...]
    language: str = ""
    """ISO 639 code; empty where the model does not tell."""
    tokens: int = 0
    avg_logprob: float | None = None


Run = Generator[str, None, list[Heard]]
"""A run over some items. Stops after each step with the text so far, and ends with what was heard, item by item."""


class Recognizer(Protocol):
    """A model on the device."""

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes that may be asked for; none where the language cannot be chosen."""

    def alike(self, item: Item) -> Hashable | None:
        """Items of which this is equal may share a run; None keeps an item alone."""

    def run(self, items: Sequence[Item]) -> Run:
        """Begin with items that are alike. What MLX raises comes out of it."""


class Aligned:
    """Parakeet: every token has a time, and a batch is a batch of spectrograms of one length."""

    languages: tuple[str, ...] = ()

    def __init__(self, model: Any, dtype: mx.Dtype) -> None:
        self._model = model
        self._dtype = dtype

    def alike(self, item: Item) -> Hashable | None:
        # Its encoder takes no lengths: only spectrograms of one length can share a call and none be padded.
        return len(item.samples)

    def run(self, items: Sequence[Item]) -> Run:
        mel = [self._model._log_mel_spectrogram(mx.array(item.samples, self._dtype)) for item in items]
        results = self._model.decode(mx.concatenate(mel) if len(mel) > 1 else mel[0])
        # A generator: without a step between, the whole batch is one.
        yield from ()
        return [aligned(result, item) for result, item in zip(results, items, strict=True)]


def aligned(result: Any, item: Item) -> Heard:
    """What an ``AlignedResult`` of mlx-audio says."""
    segments, clock, count = [], 0.0, 0
    for sentence in result.sentences:
        text = sentence.text.strip()
        count += len(sentence.tokens)
        if not text:
            continue
        start = min(max(float(sentence.start), clock), item.duration_s)
        end = min(max(float(sentence.end), start), item.duration_s)
        clock = end
        words = clamped(token_words(sentence.tokens), start, end) if item.options.words else ()
        segments.append(Segment(start, end, text, words))
    if not item.options.timestamps:
        segments = list(whole(result.text, item))
    return Heard(result.text.strip(), tuple(segments), tokens=count)


def token_words(tokens: Sequence[Any]) -> list[Word]:
    """Tokens with times, put together to words: each begins with a blank."""
    words: list[Word] = []
    for token in tokens:
        if words and not token.text.startswith(" "):
            last = words[-1]
            words[-1] = Word(last.start, float(token.end), last.text + token.text, None)
        else:
            text = token.text if words else token.text.lstrip()
            words.append(Word(float(token.start), float(token.end), text, None))
    return [word for word in words if word.text.strip()]


class Tokens:
    """Qwen3-ASR: a language model that reads the audio and gives one token a step."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = languages.by_code(model.config.support_languages or ())
        self.languages = tuple(self._names)

    def alike(self, item: Item) -> Hashable | None:
        return None

    def run(self, items: Sequence[Item]) -> Run:
        (item,) = items
        options = item.options
        tokens: list[int] = []
        logprobs: list[float] = []
        steps = self._model.stream_generate(
            item.samples,
            max_tokens=item.cap,
            sampler=self._sampler(item),
            language=self._names[options.language] if options.language else None,
            system_prompt=self._context(options),
        )
        for token, scores in steps:
            tokens.append(int(token))
            logprobs.append(float(scores[int(token)]))
            yield self._read(tokens, options)[1]
        language, text = self._read(tokens, options)
        mean = sum(logprobs) / len(logprobs) if logprobs else None
        return [Heard(text, whole(text, item), language, len(tokens), mean)]

    @staticmethod
    def _context(options: DecodeOptions) -> str | None:
        from mlx_audio.stt.utils import merge_hotwords

        merged: str | None = merge_hotwords(options.prompt, list(options.hot_words))
        return merged

    @staticmethod
    def _sampler(item: Item) -> Any:
        """None takes the likeliest token. Draws depend on the item alone, and on nothing drawn before."""
        if item.temperature == 0:
            return None
        digest = hashlib.sha256(item.samples.tobytes())
        digest.update(f"{item.options.seed}/{item.temperature}".encode())
        key = mx.random.key(int.from_bytes(digest.digest()[:4], "big"))

        def sample(logprobs: mx.array) -> mx.array:
            nonlocal key
            key, now = mx.random.split(key)
            return mx.random.categorical(logprobs * (1 / item.temperature), key=now)

        return sample

    def _read(self, tokens: list[int], options: DecodeOptions) -> tuple[str, str]:
        """Language and text; a model that was not told the language says it first."""
        text = self._model._tokenizer.decode(tokens, skip_special_tokens=True)
        if options.language:
            return options.language, text.strip()
        if "<asr_text>" not in text:
            # Still at the language, or a model that has skipped it.
            return "", "" if text.startswith("language ") else text.strip()
        name, text = self._model.extract_language(text)
        return languages.code_of(name), text.strip()


class Whole:
    """Any other: one call of ``generate``, one result, one step."""

    languages: tuple[str, ...] = ()

    def __init__(self, model: Any, dtype: mx.Dtype) -> None:
        self._model = model
        self._dtype = dtype
        named = inspect.signature(model.generate).parameters
        self._takes_cap = "max_tokens" in named
        self._takes_dtype = "dtype" in named

    def alike(self, item: Item) -> Hashable | None:
        return None

    def run(self, items: Sequence[Item]) -> Run:
        (item,) = items
        options: dict[str, Any] = {}
        if self._takes_cap:
            options["max_tokens"] = item.cap
        if self._takes_dtype:
            options["dtype"] = self._dtype
        output = self._model.generate(mx.array(item.samples), **options)
        yield from ()
        text = output.text.strip()
        language = output.language if isinstance(getattr(output, "language", None), str) else ""
        count = int(getattr(output, "generation_tokens", 0) or 0)
        return [Heard(text, timed(output, text, item), languages.code_of(language), count)]


def timed(output: Any, text: str, item: Item) -> tuple[Segment, ...]:
    """Segments of an ``STTOutput``, if they have times; else one as long as the audio."""
    found, clock = [], 0.0
    for segment in getattr(output, "segments", None) or ():
        start, end = segment.get("start"), segment.get("end")
        if start is None or end is None or not 0 <= start < end or not item.options.timestamps:
            return whole(text, item)
        begin = min(max(float(start), clock), item.duration_s)
        clock = min(max(float(end), begin), item.duration_s)
        if segment["text"].strip():
            found.append(Segment(begin, clock, segment["text"].strip()))
    return tuple(found) or whole(text, item)


def whole(text: str, item: Item) -> tuple[Segment, ...]:
    """One segment as long as the audio, if anything was said."""
    return (Segment(0.0, item.duration_s, text.strip()),) if text.strip() else ()
