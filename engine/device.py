"""The real backend: MLX, Whisper and the model registry."""

from __future__ import annotations

import importlib.metadata
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine import blas, memory, system
from engine.config import EngineConfig, default_cache_dir
from engine.limits import resolve
from engine.loop import LoadedSession, LoadRefused
from engine.models import ModelError, Registry
from engine.protocol import ChunkRequest, Loaded, Ready, Requantized, Rung, Sample, Shape, Surroundings
from engine.recognizers.families import WHISPER, family_named
from engine.stepping import Schedule
from engine.windows import BUCKET_FRAMES

if TYPE_CHECKING:
    from engine.whisper.canary import Clip
    from engine.whisper.kernels import FloatArray
    from engine.whisper.model import Whisper
    from engine.whisper.tokenizer import Tokenizer


@dataclass(slots=True)
class _Held:
    """A loaded model, and what a change of its precision needs."""

    model: Whisper
    tokenizer: Tokenizer
    folder: Path
    clip: Clip | None = None


class MlxBackend:
    """MLX on the device it finds. Lives on the thread that made it."""

    def __init__(self, config: EngineConfig) -> None:
        import mlx.core as mx

        from engine.whisper.model import default_kernels

        self.limits = resolve(
            memory.device_total(),
            budget=config.budget,
            memory=config.memory_limit,
            cache=config.cache_limit,
            wired=config.wired_limit,
            reserve=config.reserve,
        )
        memory.set_limits(self.limits)
        threads = config.threads or blas.available_cores()
        self._kernels = default_kernels(threads)
        cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
        self._registry = Registry(config.aliases, cache_dir)
        self.device = device_name()
        half = config.half_precision and self.device != "cpu"
        self._dtype = mx.float16 if half else mx.float32
        self.dtype_name = "float16" if half else "float32"
        self._threads = threads if self.device == "cpu" else 0
        self._held: dict[str, _Held] = {}
        self._schedule = Schedule(config.slots, config.encode_s, config.encode_beside_s, config.decode_steps)

    def load(self, alias: str, bits: int | None) -> LoadedSession:
        """See :class:`engine.loop.Backend`."""
        from engine.whisper import precision
        from engine.whisper.model import BadModel, load_model
        from engine.whisper.session import WhisperSession
        from engine.whisper.tokenizer import BadTokenizer, Tokenizer

        began = time.monotonic()
        # What another model has freed is of other shapes.
        memory.clear()
        try:
            folder = self._registry.resolve(alias)
            family = self._registry.source(alias).family
            if family != WHISPER:
                return self._load_other(alias, folder, family, began)
            model = load_model(folder, self._dtype, self._kernels, _quantized(bits))
            tokenizer = Tokenizer(folder, model.dims.n_vocab)
        except ModelError as exc:
            raise LoadRefused(exc.code, str(exc)) from exc
        except (BadModel, BadTokenizer, OSError, ValueError) as exc:
            raise LoadRefused("model_unreadable", f"{type(exc).__name__}: {exc}") from exc
        warm_up(model, tokenizer.sot)
        memory.clear()
        loaded = Loaded(
            model=alias,
            seconds=time.monotonic() - began,
            weights_bytes=precision.weights_bytes(model),
            bits=model.bits,
            n_audio_state=model.dims.n_audio_state,
            languages=tokenizer.languages,
            can_translate=tokenizer.multilingual,
            shape=self._shape(model),
            rungs=precision.rungs(model),
        )
        self._held[alias] = _Held(model, tokenizer, folder)
        return LoadedSession(WhisperSession(model, tokenizer, self._schedule), loaded)

    def _load_other(self, alias: str, folder: Path, name: str, began: float) -> LoadedSession:
        from engine.recognizers.load import BadRecognizer, load_recognizer
        from engine.recognizers.session import RecognizerSession

        family = family_named(name)
        assert family is not None, "the registry holds families that there are"
        try:
            model = load_recognizer(folder, family, self._dtype)
        except BadRecognizer as exc:
            raise LoadRefused("model_unreadable", str(exc)) from exc
        loaded = Loaded(
            model=alias,
            seconds=time.monotonic() - began,
            weights_bytes=model.weights_bytes,
            bits=model.bits,
            n_audio_state=model.width,
            languages=model.recognizer.languages,
            can_translate=False,
            shape=Shape(0, 0, model.width, 0, self._dtype.size, 0),
            rungs=(Rung(model.bits, model.weights_bytes, 0, 0),),
        )
        return LoadedSession(RecognizerSession(model.recognizer, family, model.bits), loaded)

    def _shape(self, model: Whisper) -> Shape:
        return Shape(
            n_audio_layer=model.dims.n_audio_layer,
            n_text_layer=model.dims.n_text_layer,
            n_text_state=model.dims.n_text_state,
            n_vocab=model.dims.n_vocab,
            item_bytes=model.dtype.size,
            windows_at_once=self._threads,
            encode_s=self._schedule.encode_s,
            encode_beside_s=self._schedule.encode_beside_s,
        )

    def requantize(self, alias: str, bits: int) -> Requantized:
        """See :class:`engine.loop.Backend`."""
        from engine.whisper import canary, precision

        held = self._held[alias]
        bits_before = held.model.bits
        clip = held.clip
        before = canary.read(held.model, held.tokenizer, clip) if clip else None
        measured = precision.change(held.model, held.folder, bits)
        # What is kept of silence went with the old weights: it is held at rest, so it is there before rest is read.
        held.model.hear_silence()
        after = canary.read(held.model, held.tokenizer, clip) if clip else None
        memory.clear()
        return Requantized(
            model=alias,
            bits_before=bits_before,
            bits=held.model.bits,
            seconds=0.0,
            active_before=measured.before,
            active_after=measured.after,
            active_peak=measured.peak,
            weights_bytes=precision.weights_bytes(held.model),
            canary=canary.compare(before, after),
        )

    def heard(self, chunk: ChunkRequest) -> None:
        """See :class:`engine.loop.Backend`."""
        from engine.whisper import canary

        held = self._held.get(chunk.model)
        if held is not None:
            held.clip = canary.keep(held.clip, chunk, time.monotonic())

    def sample(self, after_step: bool) -> Sample:
        return memory.sample_after_step() if after_step else memory.sample()

    def surroundings(self) -> Surroundings:
        return Surroundings(system.read(), memory.proportional())

    def clear(self) -> None:
        memory.clear()


def _quantized(bits: int | None) -> int | None:
    """What is asked of the loader: 16 and 32 bits are the weights as they are."""
    return bits if bits is not None and bits <= 8 else None


PARITY_TOLERANCE = 1e-2
"""How far a batch's logits may lie from a single row's, in units of the logits' spread."""


def warm_up(model: Whisper, token: int) -> None:
    """Run every kernel once, as a batch of two unlike rows and alone, and compare.

    A peer's release of MLX once spoiled all rows of a batch but the first; a model that does so here is
    refused before it meets a job.

    :raises LoadRefused: the batch and the single row disagree.
    """
    import mlx.core as mx
    import numpy as np

    frames = 2 * BUCKET_FRAMES[0]
    noise = np.random.Generator(np.random.Philox(1)).standard_normal((2, frames, model.dims.n_mels))
    mel = mx.array((0.3 * noise).astype(np.float32))

    def logits(rows: list[int]) -> FloatArray:
        cache = model.cache(model.encode(mel[mx.array(rows)]))
        model.decode([[token]] * len(rows), cache, [0])
        return model.decode([[token]] * len(rows), cache, [0])[:, 0]

    together, alone = logits([0, 1]), logits([1])
    distance = float(np.max(np.abs(together[1] - alone[0])) / np.std(alone[0]))
    if not distance <= PARITY_TOLERANCE * (10 if model.dtype == mx.float16 else 1):
        raise LoadRefused("parity", f"a row in a batch differs from the row alone by {distance:.3g}")


def device_name() -> str:
    """ "cpu", "metal" or "cuda": what MLX computes on by default."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def start(config: EngineConfig) -> tuple[MlxBackend, Ready]:
    """Load a BLAS, then MLX, and make the backend."""
    # Parallel work is the kernels' own: see HostKernels.
    memory.tame_malloc()
    loaded_blas = blas.load(threads=1)
    blas.limit_numpy()
    backend = MlxBackend(config)
    ready = Ready(
        pid=os.getpid(),
        device=backend.device,
        dtype=backend.dtype_name,
        blas=str(loaded_blas.path) if loaded_blas else None,
        mlx_version=importlib.metadata.version("mlx"),
        limits=backend.limits,
    )
    return backend, ready
