"""``faster_whisper_side.py FOLDER TYPE MANNER THREADS``: faster-whisper, greedy, over a CTranslate2 folder.

MANNER is ``plain`` (``WhisperModel.transcribe``, one file after another, each call on all threads), ``spread`` (a
worker of CTranslate2 for each thread, files side by side) or ``batched`` (``BatchedInferencePipeline``, eight
windows of a file at a time).
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from lines import Heard, answers, one_by_one, serve

BATCH = 8


def main(folder: str, compute_type: str, manner: str, threads: int) -> None:
    output = answers()
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    spread = manner == "spread"
    model = WhisperModel(
        folder,
        device="cpu",
        compute_type=compute_type,
        cpu_threads=1 if spread else threads,
        num_workers=threads if spread else 1,
    )
    pipeline = BatchedInferencePipeline(model) if manner == "batched" else None

    def hear(path: str) -> Heard:
        options = {"language": "en", "beam_size": 1}
        if pipeline is None:
            segments, _ = model.transcribe(path, **options)
        else:
            segments, _ = pipeline.transcribe(path, batch_size=BATCH, **options)
        said = [(segment.start, segment.end, segment.text) for segment in segments]
        return Heard("".join(text for _, _, text in said).strip(), said)

    facts = {
        "version": version("faster-whisper"),
        "ctranslate2": version("ctranslate2"),
        "dtype": compute_type,
        "manner": manner,
    }
    if not spread:
        serve(output, facts, one_by_one(hear))
        return
    with ThreadPoolExecutor(threads) as pool:
        serve(output, facts, lambda paths: list(pool.map(hear, paths)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
