"""The worker's end of one media process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from worker.media import frames
from worker.media.frames import Frame
from worker.media.types import MediaLimits

START_TIMEOUT_S = 60.0
"""Importing the decoders takes under a second; a cold disk on a loaded machine takes longer."""

_PASSED_ON = ("TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_ROOT = Path(__file__).resolve().parents[2]


class ProcessGone(Exception):
    """The process died, or broke the protocol and was killed."""

    def __init__(self, reason: str, *, started: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        """For the log: a signal, an exit status, a place in our code."""
        self.started = started
        """False where it died before it took the job."""


class MediaProcess:
    """One warm process. Not safe for two jobs at once."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        crash: BinaryIO,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._crash = crash
        self._started = False
        """Whether it has taken the job that it has."""
        self.jobs = 0
        """How many it has taken."""
        self.patient = False
        """Whether it has had long work that nobody waits for, and stands back behind other processes since."""

    @classmethod
    async def spawn(cls, limits: MediaLimits) -> MediaProcess:
        """A process that has imported its decoders. Raises ProcessGone, OSError."""
        ours, theirs = socket.socketpair()
        crash = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "worker.media", str(theirs.fileno()), str(crash.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                # mpg123 and others chat there about damaged files; crashes go to their own file.
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), crash.fileno()),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            ours.close()
            crash.close()
            raise
        finally:
            theirs.close()
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
            self = cls(process, reader, writer, crash)
        except BaseException:
            ours.close()
            crash.close()
            process.kill()
            await process.wait()
            raise
        await self._greet(limits)
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether a job may be given to it."""
        return self._process.returncode is None and not self._reader.at_eof()

    async def run(
        self,
        job: Frame,
        on_decoding: Callable[[int], None],
        on_long: Callable[[], None],
        on_found: Callable[[Frame], None],
    ) -> Frame:
        """The answer to a job: a ``done`` or an ``error``. Raises ProcessGone, with the process dead.

        `on_decoding` is told how many bytes were fetched, once the input is here; `on_long` that it is longer than a
        piece, and each further minute that is done; `on_found` each frame of pieces, or of the whole as one, that comes
        before the answer. What they raise comes through, and leaves the process with its job.
        """
        self.jobs += 1
        self._started = False
        self._writer.write(frames.pack(job))
        while True:
            answer = await self._read()
            match answer:
                case {"t": "started"}:
                    self._started = True
                case {"t": "decoding", "fetched": int(fetched)} if self._started:
                    on_decoding(fetched)
                case {"t": "long"} if self._started:
                    self.patient = self.patient or bool(job["patient"])
                    on_long()
                case {"t": "pieces" | "whole"} if self._started:
                    on_found(answer)
                case {"t": "done" | "error"}:
                    return answer
                case {"t": "crash", "where": str(where)}:
                    raise ProcessGone(where, started=self._started)
                case _:
                    await self.kill()
                    raise ProcessGone("broken protocol", started=self._started)

    async def _read(self) -> Frame:
        try:
            return await frames.read(self._reader)
        except EOFError as exc:
            await self.kill()
            raise ProcessGone(self._reason(), started=self._started) from exc
        except frames.BrokenFrame as exc:
            await self.kill()
            raise ProcessGone("broken protocol", started=self._started) from exc

    def end(self) -> None:
        """Sends SIGKILL to the process and its session."""
        # It may have ended by itself a moment ago.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Ends the process and waits until it is gone. Safe twice."""
        self.end()
        await self._process.wait()
        self._writer.close()

    def close(self) -> None:
        """Lets go of what the worker holds of a dead process."""
        self._writer.close()
        self._crash.close()

    async def _greet(self, limits: MediaLimits) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._writer.write(frames.pack({"t": "limits", "fields": dataclasses.asdict(limits)}))
                answer = await frames.read(self._reader)
            if answer["t"] != "ready":
                raise ProcessGone(str(answer.get("where", "no answer")), started=False)
        except BaseException as exc:
            await self.kill()
            reason = self._reason()
            self.close()
            if isinstance(exc, EOFError | TimeoutError | frames.BrokenFrame):
                raise ProcessGone(f"it did not start ({reason})", started=False) from exc
            raise

    def _reason(self) -> str:
        status = self._process.returncode
        if status is not None and status < 0:
            self._crash.seek(0)
            stack = self._crash.read(2000).decode("utf-8", "replace").strip()
            return f"signal {-status}" + (f"; {stack}" if stack else "")
        return f"exit status {status}"


def _environment() -> dict[str, str]:
    """Only what the process needs: the worker's environment holds passwords."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {"PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1", "PATH": os.defpath, **threads, **passed}
