"""Many batches of mixed shapes through a real engine: what it holds must not grow.

The model is a Whisper of one narrow layer with random weights, so that thousands of batches take a minute: what could
leak - buffers of every shape, caches, rows, frames on the socket - is that of any model.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.config import EngineConfig, default_cache_dir
from engine.handle import EngineProcess
from engine.protocol import (
    SAMPLE_RATE,
    BatchDone,
    ChunkRequest,
    ClearCache,
    DecodeOptions,
    Dispatch,
    Load,
    Loaded,
    LoadFailed,
    Sample,
)
from ops.exits import Trouble
from ops.settings import MIB, Settings

WIDTH = 64
EVERY = 100
"""Batches between two readings of a cleared engine."""
SETTLED = 5
"""Readings at the beginning that do not count: buffers of every shape are being met for the first time."""
FLAT_MB = 8.0
"""Growth of the least from the first to the last quarter that counts as flat."""
DURATIONS_S = (0.5, 1.5, 4.0, 9.0)


def run(settings: Settings, batches: int, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run so many batches and return the readings, MiB. Raises Trouble."""
    with tempfile.TemporaryDirectory(prefix="decibatch-leak-") as name:
        folder = Path(name)
        make_model(_tokenizer_folder(settings), folder / "model")
        (folder / "noise.raw").write_bytes(random.Random(1).randbytes(20 * SAMPLE_RATE * 2))  # noqa: S311
        readings = asyncio.run(_drive(folder, batches, tell))
    return judge(readings, batches)


def judge(readings: list[tuple[int, int]], batches: int) -> dict[str, Any]:
    """Growth between the first and the last quarter of the readings, each (active, footprint) in bytes."""
    counted = readings[SETTLED:] if len(readings) > 2 * SETTLED else readings
    quarter = max(1, len(counted) // 4)
    growth = {
        name: round((min(r[i] for r in counted[-quarter:]) - min(r[i] for r in counted[:quarter])) / MIB, 2)
        for i, name in enumerate(("active_growth_mb", "footprint_growth_mb"))
    }
    return {
        "batches": batches,
        "flat": max(growth.values()) <= FLAT_MB,
        **growth,
        "footprint_mb": [round(footprint / MIB, 1) for _, footprint in readings],
    }


def sentence(found: dict[str, Any]) -> str:
    """For people."""
    verdict = "flat" if found["flat"] else "it grows"
    growth = f"active {found['active_growth_mb']:+} MiB, footprint {found['footprint_growth_mb']:+} MiB"
    return f"{found['batches']} batches of mixed shapes: {verdict} ({growth}, first quarter to last)"


def _tokenizer_folder(settings: Settings) -> Path:
    from engine.models import ModelError, Registry

    cache = settings.cache_dir.expanduser() if settings.cache_dir else default_cache_dir()
    try:
        return Registry(settings.models, cache).resolve(settings.model)
    except ModelError as exc:
        raise Trouble(str(exc)) from exc


def make_model(source: Path, target: Path) -> None:
    """A Whisper of one layer with the tokenizer of another one."""
    import numpy as np

    from engine import weights

    target.mkdir()
    shutil.copy(source / "tokenizer.json", target)
    config = json.loads((source / "config.json").read_text())
    config |= {"n_audio_state": WIDTH, "n_text_state": WIDTH, "n_audio_layer": 1, "n_text_layer": 1}
    config.pop("alignment_heads", None)  # of the layers that it has no more
    (target / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(1)

    def dense(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    variables = {
        "encoder.conv1.weight": dense(WIDTH, 3, config["n_mels"]),
        "encoder.conv2.weight": dense(WIDTH, 3, WIDTH),
        "decoder.token_embedding.weight": dense(config["n_vocab"], WIDTH),
        "decoder.positional_embedding": dense(config["n_text_ctx"], WIDTH),
    }
    names = ["encoder.ln_post", "decoder.ln"]
    for side in ("encoder", "decoder"):
        block = f"{side}.blocks.0"
        groups = ["attn"] + (["cross_attn"] if side == "decoder" else [])
        names += [f"{block}.{part}_ln" for part in (*groups, "mlp")]
        for path in (f"{group}.{part}" for group in groups for part in ("query", "key", "value", "out")):
            variables[f"{block}.{path}.weight"] = dense(WIDTH, WIDTH)
        variables[f"{block}.mlp1.weight"] = dense(4 * WIDTH, WIDTH)
        variables[f"{block}.mlp2.weight"] = dense(WIDTH, 4 * WIDTH)
    for name in names:
        variables |= {
            f"{name}.weight": np.ones(WIDTH, np.float32),
            f"{name}.bias": np.zeros(WIDTH, np.float32),
        }
    variables |= {f"encoder.{conv}.bias": np.zeros(WIDTH, np.float32) for conv in ("conv1", "conv2")}
    weights.write_safetensors(target / "model.safetensors", variables)


async def _drive(folder: Path, batches: int, tell: Callable[[str], None]) -> list[tuple[int, int]]:
    config = EngineConfig(aliases={"m": f"path:{folder / 'model'}"}, partials=False)
    process = await EngineProcess.spawn(config)
    rng = random.Random(2)  # noqa: S311 - shapes, not a secret
    readings: list[tuple[int, int]] = []
    options = DecodeOptions(temperatures=(0.0,), max_tokens=1, timestamps=False)
    try:
        await process.send(Load("m"))
        number, asked = 0, False
        async for event in process.events():
            if isinstance(event, LoadFailed):
                raise Trouble(event.message)
            if isinstance(event, Sample) and asked and number % EVERY == 0:
                asked = False
                readings.append((event.active, event.footprint))
                if number % (5 * EVERY) == 0:
                    tell(f"{number} of {batches} batches: {event.footprint / MIB:.1f} MiB held")
            elif isinstance(event, BatchDone) and number % EVERY == 0:
                asked = True
                await process.send(ClearCache())
                continue
            elif not isinstance(event, Loaded | BatchDone):
                continue
            if number >= batches:
                return readings
            number += 1
            await process.send(Dispatch(number, _batch(folder, number, rng, options)))
        raise Trouble(f"The engine ended: {await process.wait()}")
    finally:
        await process.stop(5)


def _batch(folder: Path, number: int, rng: random.Random, options: DecodeOptions) -> tuple[ChunkRequest, ...]:
    duration = rng.choice(DURATIONS_S)
    return tuple(
        ChunkRequest(
            f"{number}-{row}", "j", "m", str(folder / "noise.raw"), row, int(duration * SAMPLE_RATE), options
        )
        for row in range(rng.randint(1, 4))
    )
