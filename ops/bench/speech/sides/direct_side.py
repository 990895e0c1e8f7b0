"""``direct_side JSON``: our own model called in a process, without queue and worker. What these add is the ratio to it.

JSON holds ``models`` (alias to source), ``model`` and ``cache``. A file is decoded by our decoders, then is one
chunk: there is no voice activity detection, and the file must not be longer than 30 s.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from ops.bench.speech.audio import samples
from ops.bench.speech.sides.lines import Heard, answers, one_by_one, serve


def main(told: str) -> None:
    output = answers()
    from engine import device
    from engine.config import EngineConfig
    from engine.protocol import ChunkDone, ChunkRequest, DecodeOptions

    given = json.loads(told)
    backend, ready = device.start(EngineConfig(aliases=given["models"], cache_dir=given["cache"]))
    session = backend.load(given["model"], None).session
    with tempfile.TemporaryDirectory(prefix="decibatch-direct-") as name:
        spool = Path(name) / "samples"

        def hear(path: str) -> Heard:
            pcm = samples(Path(path))
            pcm.astype("<i2", copy=False).tofile(spool)
            session.add([ChunkRequest("0", "0", given["model"], str(spool), 0, len(pcm), DecodeOptions())])
            answered = list(session.take())
            while session.busy:
                if session.plan() is not None:
                    session.step()
                answered += session.take()
            (outcome,) = answered
            if not isinstance(outcome, ChunkDone):
                raise RuntimeError(f"the model answered {type(outcome).__name__}")
            return Heard(outcome.text, [(s.start, s.end, s.text) for s in outcome.segments])

        serve(output, {"dtype": ready.dtype, "mlx": ready.mlx_version}, one_by_one(hear))


if __name__ == "__main__":
    main(sys.argv[1])
