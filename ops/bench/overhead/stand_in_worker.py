"""``python -m ops.bench.overhead.stand_in_worker``: a worker that decodes nothing.

Decoding a file takes some 10 ms and says nothing about a queue. In this worker every input has the same
audio, one spool file that is written once; all else is the worker that everybody runs. Nothing but
``decibatch bench overhead`` starts this.
"""

from __future__ import annotations

import sys
from pathlib import Path

import worker.daemon
from ops.cli import main
from worker.media.types import (
    BYTES_PER_SAMPLE,
    MediaDone,
    MediaLimits,
    MediaRequest,
    OnPieces,
    OnWhole,
    Piece,
)

SAMPLES = 1600
"""A tenth of a second."""


class StandInMedia:
    """Has the face of :class:`worker.media.supervisor.MediaSupervisor`; is done before anybody waits."""

    busy = waiting = coming_soon = spool_bytes = reserved_bytes = 0
    pids: tuple[int, ...] = ()

    def __init__(self, spool_dir: Path, limits: MediaLimits, processes: int = 1) -> None:
        self._file = spool_dir / "everything.pcm"
        piece = Piece(0, SAMPLES)
        self._done = MediaDone(
            str(self._file), piece.duration_s, (piece,), piece.duration_s, 0.0, 0.0, "stand-in"
        )

    async def start(self) -> None:
        """Writes the file. Raises OSError."""
        self._file.write_bytes(b"\1\0" * SAMPLES)
        assert self._file.stat().st_size == SAMPLES * BYTES_PER_SAMPLE

    async def stop(self) -> None:
        """Removes the file, and the folder with it. Safe twice."""
        self._file.unlink(missing_ok=True)

    async def prepare(
        self, request: MediaRequest, on_pieces: OnPieces | None = None, on_whole: OnWhole | None = None
    ) -> MediaDone:
        return self._done

    def discard(self, spool: str) -> None:
        """It is the next one's too."""


if __name__ == "__main__":
    vars(worker.daemon)["MediaSupervisor"] = StandInMedia
    sys.argv[1:] = ["worker"]
    main()
