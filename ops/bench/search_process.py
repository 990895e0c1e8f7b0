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
    session, whole = _sessions(folder)
    clips = [_spooled(Path(path)) for path in order["clips"]]
    widths = (1, order["beam"])
    _decode(session, clips[:AT_A_TIME], beam_size=1)
    rounds = [{str(width): _round(session, clips, width) for width in widths} for _ in range(order["rounds"])]
    answer: dict[str, Any] = {"rounds": rounds}
    if order["words"]:
        answer["words"] = _words(session, folder, clips)
    if order["segments"]:
        answer["segments"] = _segments(session, whole, folder, clips)
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _sessions(folder: Path) -> tuple[Any, Any]:
    """A session as it is, and one over the same model whose windows last 30 s."""
    import mlx.core as mx

    from engine import blas, windows
    from engine.whisper.model import default_kernels, load_model
    from engine.whisper.session import WhisperSession
    from engine.whisper.tokenizer import Tokenizer

    model = load_model(folder, mx.float32, default_kernels(blas.available_cores()))
    tokenizer = Tokenizer(folder, model.dims.n_vocab)
    longest = windows.BUCKET_FRAMES[-1]
    return WhisperSession(model, tokenizer), WhisperSession(
        model, tokenizer, window_frames=lambda seconds: longest
    )


def _spooled(path: Path) -> tuple[str, int]:
    """A spool file beside a WAV file, as our own decoders read it, and its samples."""
    from ops.bench.speech.audio import samples

    pcm = samples(path)
    spool = path.with_suffix(".raw")
    pcm.astype("<i2", copy=False).tofile(spool)
    return str(spool), len(pcm)


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


def _segments(session: Any, whole: Any, folder: Path, clips: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Segments of each clip: ours, ours in windows of 30 s, and mlx-audio's, of the same samples."""
    import numpy as np

    from engine.reference import load_mlx_audio_model

    peer = load_mlx_audio_model(folder)
    found = []
    ours, wide = _decode(session, clips), _decode(whole, clips)
    for (path, samples), one, other in zip(clips, ours, wide, strict=True):
        audio = (np.fromfile(path, "<i2") / 32768).astype(np.float32)
        heard = peer.generate(audio, language="en", fp16=False)
        found.append(
            {
                "seconds": samples / 16_000,
                "ours": [[s.start, s.end, s.text] for s in one.segments],
                "whole": [[s.start, s.end, s.text] for s in other.segments],
                "theirs": [[s["start"], s["end"], s["text"]] for s in heard.segments],
            }
        )
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
