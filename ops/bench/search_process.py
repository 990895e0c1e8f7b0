"""``python -m ops.bench.search_process FOLDER``: one JSON order in, measurements of the engine's own sessions out.

A process of its own, for OpenBLAS has to be there before MLX is. See :mod:`ops.bench.search`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

AT_A_TIME = 8


def main(folder: Path) -> None:
    order = json.loads(sys.stdin.readline())
    # What libraries print must not mix with the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    from engine import blas

    blas.load(threads=1)
    blas.limit_numpy()
    session = _session(folder)
    clips = [_spooled(Path(path)) for path in order["clips"]]
    widths = (1, order["beam"])
    _decode(session, clips[:AT_A_TIME], beam_size=1)
    rounds = [{str(width): _round(session, clips, width) for width in widths} for _ in range(order["rounds"])]
    answer: dict[str, Any] = {"rounds": rounds}
    if order["words"]:
        answer["words"] = _words(session, folder, clips)
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _session(folder: Path) -> Any:
    import mlx.core as mx

    from engine import blas
    from engine.whisper.model import default_kernels, load_model
    from engine.whisper.session import WhisperSession
    from engine.whisper.tokenizer import Tokenizer

    model = load_model(folder, mx.float32, default_kernels(blas.available_cores()))
    return WhisperSession(model, Tokenizer(folder, model.dims.n_vocab))


def _spooled(path: Path) -> tuple[str, int]:
    """A spool file beside a WAV file, and its samples."""
    import numpy as np
    import soundfile

    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = audio.mean(axis=1)
    at = np.arange(int(len(mono) * 16_000 / rate)) * rate / 16_000
    samples = (np.clip(np.interp(at, np.arange(len(mono)), mono), -1, 1) * 32767).astype("<i2")
    spool = path.with_suffix(".raw")
    samples.tofile(spool)
    return str(spool), len(samples)


def _decode(session: Any, clips: list[tuple[str, int]], **options: Any) -> list[Any]:
    """What the session hears in each clip, some at a time."""
    from engine.protocol import ChunkRequest, DecodeOptions

    told = DecodeOptions(**options)
    found: dict[str, Any] = {}
    for start in range(0, len(clips), AT_A_TIME):
        some = range(start, min(start + AT_A_TIME, len(clips)))
        session.add(ChunkRequest(str(i), str(i), "bench", clips[i][0], 0, clips[i][1], told) for i in some)
        while session.busy:
            if session.plan() is not None:
                session.step()
            found |= {done.chunk: done for done in session.take()}
    return [found[str(i)] for i in range(len(clips))]


def _round(session: Any, clips: list[tuple[str, int]], width: int) -> dict[str, Any]:
    """Texts, scores, and seconds of this process on all cores: what others do on the machine does not count."""
    began = time.process_time()
    # Without higher temperatures, the two searches alone differ.
    done = _decode(session, clips, beam_size=width, temperatures=(0.0,))
    return {
        "seconds": time.process_time() - began,
        "texts": [one.text for one in done],
        # Of all tokens and the end of each decode, as the session sums them.
        "totals": [one.avg_logprob * (one.tokens + 1) for one in done],
    }


def _words(session: Any, folder: Path, clips: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Words of each clip with their times: ours, found in batches and right-sized windows, and mlx-audio's."""
    import numpy as np

    from engine.reference import load_mlx_audio_model

    peer = load_mlx_audio_model(folder)
    found = []
    for (path, _), done in zip(clips, _decode(session, clips, words=True), strict=True):
        audio = (np.fromfile(path, "<i2") / 32768).astype(np.float32)
        heard = peer.generate(audio, language="en", fp16=False, word_timestamps=True)
        found.append(
            {
                "ours": [[w.text, w.start, w.end] for s in done.segments for w in s.words],
                "theirs": [[w["word"], w["start"], w["end"]] for s in heard.segments for w in s["words"]],
            }
        )
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
