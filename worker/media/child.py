"""The media process: one job after another, until the worker goes away.

Decoders of untrusted bytes may crash, hang or swell; here they take nothing with them but one job.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import os
import queue
import resource
import select
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from worker.media import frames
from worker.media.frames import Frame
from worker.media.types import SAMPLE_RATE, MediaError, MediaLimits, Piece

GONE, SWOLLEN, BROKEN = 0, 77, 70
"""Exit statuses: the worker is gone; memory over the limit; an error that is no MediaError."""

NICE = 10
"""Of a process that has decoded what nobody waits for: some tenth of a core where the engine wants all."""

AUTOGROUP = Path("/proc/self/autogroup")

WATCH_S = 0.2
"""How often memory is read while a job runs."""


def main(fd: int, crash_fd: int) -> None:
    """Runs the process on an inherited socket. Never returns."""
    # Native stacks of a crash hold addresses and function names only, never sound.
    faulthandler.enable(file=crash_fd, all_threads=False)
    sock = socket.socket(fileno=fd)
    limits = _limits(frames.receive(sock))
    _restrict(limits)
    watch = Watch(sock, limits.max_rss_bytes)
    watch.start()
    try:
        _serve(sock, watch, limits)
    except (BrokenPipeError, ConnectionError):
        os._exit(GONE)
    except BaseException as exc:  # told to the worker, then the end
        _tell_crash(sock, exc)
        os._exit(BROKEN)


class Watch(threading.Thread):
    """Reads the socket, so that the end of the worker is seen in the middle of a step too.

    libsndfile, FFmpeg and the detector run with the interpreter's lock released.
    """

    def __init__(self, sock: socket.socket, max_rss_bytes: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.jobs: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.busy = threading.Event()
        self._sock = sock
        self._max_rss_bytes = max_rss_bytes
        self._process = psutil.Process()

    def run(self) -> None:
        try:
            while True:
                while not select.select([self._sock], [], [], WATCH_S if self.busy.is_set() else None)[0]:
                    if self._process.memory_info().rss > self._max_rss_bytes:
                        os._exit(SWOLLEN)
                self.busy.set()
                self.jobs.put(frames.receive(self._sock))
        except (EOFError, OSError, frames.BrokenFrame):
            os._exit(GONE)


def _limits(frame: Frame) -> MediaLimits:
    fields = dict(frame["fields"])
    roots = fields["roots"]
    fields |= {
        "allowed_schemes": tuple(fields["allowed_schemes"]),
        "roots": None if roots is None else tuple(roots),
    }
    return MediaLimits(**fields)


def _restrict(limits: MediaLimits) -> None:
    os.umask(0o077)
    # A core file would hold the sound.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    largest = max(limits.max_bytes, limits.max_decoded_bytes) + (1 << 20)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if hard != resource.RLIM_INFINITY:
        largest = min(largest, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


@functools.cache
def _stand_back() -> None:
    """Let the engine and short work have the processor first. There is no way back without privileges."""
    os.nice(NICE)
    # Linux weighs sessions against each other, where it groups them (sched(7), "autogroup"): niceness alone is then
    # measured within a session, and this process has one of its own.
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(NICE))


def _serve(sock: socket.socket, watch: Watch, limits: MediaLimits) -> None:
    # Imported here, before the first job, so that a job never pays for it.
    from worker.media import vad as vads
    from worker.media.ingest import ingest

    vad = vads.load()
    _send(sock, {"t": "ready"})
    while True:
        job = watch.jobs.get()
        _send(sock, {"t": "started"})
        try:
            answer = _work(sock, job, limits, vad, ingest)
        except MediaError as exc:
            answer = {"t": "error", "code": exc.code, "message": exc.message, "retryable": exc.retryable}
        watch.busy.clear()
        _send(sock, answer)


def _work(sock: socket.socket, job: Frame, limits: MediaLimits, vad: Any, ingest: Any) -> Frame:
    begun = time.monotonic()
    fetched, fd, name = _obtain(job, limits)
    fetch_s = time.monotonic() - begun
    _send(sock, {"t": "decoding", "fetched": fetched})
    told = 0

    def tell_long() -> None:
        if job["patient"]:
            _stand_back()
        _send(sock, {"t": "long"})

    def tell_whole(whole: Piece) -> None:
        _send(sock, {"t": "whole", "pieces": _pairs((whole,))})

    def tell(pieces: tuple[Piece, ...]) -> None:
        nonlocal told
        told += len(pieces)
        _send(sock, {"t": "pieces", "pieces": _pairs(pieces)})

    try:
        with _create(job["spool"]) as spool:
            done = ingest(
                fd, spool, name, limits, vad, on_whole=tell_whole, on_long=tell_long, on_pieces=tell
            )
    except OSError as exc:
        raise _storage_error(exc, name) from exc
    finally:
        os.close(fd)
    return {
        "t": "done",
        "samples": done.samples,
        "duration_s": done.samples / SAMPLE_RATE,
        "pieces": _pairs(done.cut.pieces[told:]),
        "speech_s": done.cut.speech_s,
        "decode_s": done.seconds,
        "fetch_s": fetch_s,
        "format": done.format,
    }


def _pairs(pieces: tuple[Piece, ...]) -> list[list[int]]:
    return [[piece.offset, piece.samples] for piece in pieces]


def _obtain(job: Frame, limits: MediaLimits) -> tuple[int, int, str]:
    """Bytes fetched, a descriptor, and what to call the input."""
    from worker.media.fetch import fetch
    from worker.media.source import check_size, open_regular, shown_name

    kind, temp = job["kind"], job["temp"]
    if kind == "path":
        fd = open_regular(job["source"], limits.max_bytes, limits.roots)
        return 0, fd, shown_name(job["source"])
    name = "download" if kind == "url" else "inline"
    if kind == "url":
        try:
            with _create(temp) as into:
                check_size(fetch(job["source"], into, limits), limits.max_bytes, name)
        except OSError as exc:
            raise _storage_error(exc, name) from exc
    fd = open_regular(temp, limits.max_bytes, name=name)
    # Nobody else needs the name; without it nothing is left behind however this process ends.
    Path(temp).unlink()
    return os.fstat(fd).st_size, fd, name


def _create(path: str) -> Any:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(fd, "wb")


def _storage_error(exc: OSError, name: str) -> MediaError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return MediaError("spool_full", "There is no room left for the decoded sound.", retryable=True)
    if exc.errno == errno.EFBIG:
        return MediaError("too_large", f"The input ({name}) is larger than the limits allow.")
    reason = exc.strerror or type(exc).__name__
    return MediaError("input_unreadable", f"Reading the input ({name}) failed: {reason}.", retryable=True)


def _send(sock: socket.socket, frame: Frame) -> None:
    sock.sendall(frames.pack(frame))


def _tell_crash(sock: socket.socket, exc: BaseException) -> None:
    """Says where it happened. The exception's text stays here: it may quote the input."""
    last = traceback.extract_tb(exc.__traceback__)[-1:]
    where = "".join(f"{Path(entry.filename).name}:{entry.lineno} " for entry in last) + type(exc).__name__
    # Where the worker is gone too there is nobody to tell.
    with contextlib.suppress(OSError):
        _send(sock, {"t": "crash", "where": where})
