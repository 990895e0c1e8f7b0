"""Short clips: ours, eight at a time over the whole path, against mlx-audio's own ``Model.generate``, one by one.

Both run in one go: the same clips, the same weights in float32, the same OpenBLAS where there is one. The
rounds alternate, so that what else the machine does falls on both. A figure is the median of its rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops import recordings, stack
from ops.bench import speech_references
from ops.bench.peer import MlxAudio
from ops.bench.words import NORMALIZER, error_rate
from ops.exits import Trouble
from ops.settings import Settings
from queueing.client import Client
from queueing.errors import JobNotDone, ResultTimeout

AT_A_TIME = 8
RESULT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over all clips."""

    seconds: float
    texts: tuple[str, ...]


def run(settings: Settings, *, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure and return the object that ``decibatch bench speech --json`` prints. Raises Trouble."""
    clips = speech_references.clips()
    with tempfile.TemporaryDirectory(prefix="decibatch-bench-") as name:
        files = cut(clips, Path(name))
        with (
            MlxAudio(settings) as peer,
            stack.running(model=settings.model, tell=tell) as own,
            Client(own.url, queue=stack.QUEUE, model=settings.model) as client,
        ):
            facts = peer.facts
            tell(f"warming up: {len(files)} clips each")
            ours(client, files)
            theirs(peer, files)
            pairs = []
            for number in range(1, rounds + 1):
                pairs.append((ours(client, files), theirs(peer, files)))
                mine, other = (len(files) / side.seconds for side in pairs[-1])
                tell(f"round {number} of {rounds}: {mine:.2f} clips/s, mlx-audio {other:.2f}")
            own.check()
    return report(clips, pairs, facts)


def cut(clips: Sequence[speech_references.Clip], folder: Path) -> list[Path]:
    """Write each clip as a WAV file of the recording's own rate. Needs soundfile."""
    import soundfile

    files = []
    for number, clip in enumerate(clips):
        source = recordings.folder() / clip.file
        rate = soundfile.info(source).samplerate
        stop = None if clip.end_s is None else round(clip.end_s * rate)
        samples, _ = soundfile.read(source, start=round(clip.start_s * rate), stop=stop, dtype="int16")
        files.append(folder / f"{number:02d}-{source.stem}.wav")
        soundfile.write(files[-1], samples, rate, subtype="PCM_16")
    return files


def ours(client: Client, files: Sequence[Path]) -> Round:
    """Submit eight, wait for the eight, and so on, as one client does that has no more at hand."""
    texts = []
    began = time.perf_counter()
    for start in range(0, len(files), AT_A_TIME):
        handed = client.submit_many(files[start : start + AT_A_TIME])
        for job in handed:
            if isinstance(job, Exception):
                raise Trouble(f"A clip was refused: {job}")
            try:
                texts.append(client.result(job, timeout=RESULT_TIMEOUT_S).text)
            except (JobNotDone, ResultTimeout) as exc:
                raise Trouble(f"A clip was not transcribed: {exc}") from exc
    return Round(time.perf_counter() - began, tuple(texts))


def theirs(peer: MlxAudio, files: Sequence[Path]) -> Round:
    """One call after another, timed inside the peer's process: our pipe to it does not count."""
    answers = [peer.transcribe(path) for path in files]
    return Round(sum(seconds for _, seconds in answers), tuple(text for text, _ in answers))


def report(
    clips: Sequence[speech_references.Clip], pairs: Sequence[tuple[Round, Round]], facts: dict[str, Any]
) -> dict[str, Any]:
    """The rows, and what one must know to read them."""
    references = [clip.text for clip in clips]

    def rate(side: int) -> float:
        return statistics.median(len(clips) / pair[side].seconds for pair in pairs)

    def wer(side: int) -> float:
        return statistics.median(error_rate(references, pair[side].texts) for pair in pairs)

    row = {
        "work": f"{len(clips)} clips of 2-11 s, {AT_A_TIME} at a time, clips per second",
        "against": f"mlx-audio {facts['mlx_audio']} Model.generate, one after another",
        "ours": round(rate(0), 3),
        "theirs": round(rate(1), 3),
        "ratio": round(statistics.median(other.seconds / mine.seconds for mine, other in pairs), 2),
        "wer": round(wer(0), 4),
        "wer_theirs": round(wer(1), 4),
    }
    return {"rows": [row], "normalizer": NORMALIZER, "rounds": len(pairs), **facts}
