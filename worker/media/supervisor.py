"""Keeps the media processes: hands out jobs, kills what hangs, replaces what dies, bounds the spool.

The standard library's process pool would not do: a dead child fails every job there, a hung one lives on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from worker.media.answers import WrongAnswer, done_of, pieces_of
from worker.media.frames import Frame
from worker.media.process import MediaProcess, ProcessGone
from worker.media.slots import Load, Ticket, admits, choose
from worker.media.spool import Spool
from worker.media.types import MediaDone, MediaError, MediaLimits, MediaRequest, OnPieces, OnWhole, Piece

log = logging.getLogger(__name__)

STANDING_BACK = 10
"""Times the limit that a process which stands back may take in all, where each minute of sound keeps within it."""


class MediaSupervisor:
    """Turns inputs into spool files, each in one of `processes` processes that are kept warm.

    Parameters
    ----------
    spool_dir
        A folder for this worker alone. Spool files found in it at `start` are of an earlier life: removed.
    processes
        How many jobs run at once. From 2 on, one is kept for short work.
    recycle_after
        Jobs after which a process is replaced, so that what a decoder leaks stays bounded.
    """

    def __init__(
        self, spool_dir: Path, limits: MediaLimits, processes: int = 2, *, recycle_after: int = 200
    ) -> None:
        if processes < 1:
            raise ValueError("At least one media process is needed.")
        self._limits = limits
        self._slots = processes
        self._recycle_after = recycle_after
        self._spool = Spool(spool_dir)
        self._processes: set[MediaProcess] = set()
        self._warm: list[asyncio.Future[MediaProcess]] = []
        self._line: dict[Ticket, asyncio.Future[None]] = {}
        self._running: dict[Ticket, int] = {}
        self._begun: set[Ticket] = set()
        """Running jobs that have told pieces, or the whole of which somebody uses already: companions for nobody."""
        self._chores: set[asyncio.Task[None]] = set()
        self._tickets = 0
        self._open = False
        self._quiet = asyncio.Event()
        """Set while no job holds a process."""
        self._quiet.set()

    # --- health ------------------------------------------------------------------------------

    @property
    def spool_bytes(self) -> int:
        """Finished spool files, bytes."""
        return self._spool.held_bytes

    @property
    def reserved_bytes(self) -> int:
        """The worst case of what the running jobs may still write, bytes."""
        return sum(self._running.values())

    @property
    def busy(self) -> int:
        """Jobs that hold a process."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs in line for a process or for spool room."""
        return len(self._line)

    @property
    def coming_soon(self) -> int:
        """Short jobs that are running or in line, as far as they may still give a single piece."""
        return sum(ticket.short for ticket in (*self._running, *self._line) if ticket not in self._begun)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that live, busy ones included."""
        return tuple(sorted(process.pid for process in self._processes if process.alive))

    def has_room(self, short: bool = False) -> bool:
        """Whether a job from a path would start at once."""
        ticket = Ticket(0, short, self._limits.max_decoded_bytes)
        return self._open and not self._line and admits(self._load(), ticket)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Sweeps the folder and starts the processes. Raises OSError, or MediaError where none starts."""
        if self._open:
            return
        self._spool.open()
        self._open = True
        for _ in range(self._slots):
            self._heat()
        try:
            await asyncio.gather(*self._warm)
        except ProcessGone as exc:
            await self.stop()
            raise _crashed(f"No media process starts: {exc.reason}") from exc
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Kills every process and removes every file. What waits or runs raises `media_stopped`."""
        self._open = False
        for future in self._line.values():
            if not future.done():
                future.set_exception(_stopped())
        for task in self._warm:
            task.cancel()
        await asyncio.gather(*self._warm, return_exceptions=True)
        self._warm.clear()
        await asyncio.gather(*(process.kill() for process in self._processes))
        # The jobs see the end of their process, and leave.
        await self._quiet.wait()
        await asyncio.gather(*self._chores)
        for process in self._processes:
            process.close()
        self._processes.clear()
        self._spool.close()

    # --- jobs --------------------------------------------------------------------------------

    async def prepare(
        self, request: MediaRequest, on_pieces: OnPieces | None = None, on_whole: OnWhole | None = None
    ) -> MediaDone:
        """Fetches, decodes and cuts one input; waits for a process and for spool room first.

        Raises MediaError. Cancelling the caller kills the process that works on it and removes its files. The
        spool file of a MediaDone is the caller's until `discard`.

        `on_pieces` is told, in order and once each, the pieces that are certain while the rest is still decoded. A
        recording that has one piece has none of these. Of one that is no longer than a piece `on_whole` is told all,
        which most often is what stands in the answer. From the first call of either on the file is the caller's,
        however this ends: it stays until `discard`. What they raise ends the job and comes through.
        """
        if not self._open:
            raise _stopped()
        ticket = await self._enter(request)
        try:
            return await self._attempt(request, ticket, on_pieces, on_whole)
        finally:
            self._leave(ticket)

    def discard(self, spool: str) -> None:
        """Removes a spool file and makes room for the next job. Safe twice."""
        self._spool.discard(spool)
        self._admit()

    async def _enter(self, request: MediaRequest) -> Ticket:
        self._tickets += 1
        ticket = Ticket(self._tickets, request.short, self._worst(request))
        future = asyncio.get_running_loop().create_future()
        self._line[ticket] = future
        self._admit()
        try:
            await future
        except BaseException:
            # It may have been let in at the very moment of its cancellation.
            self._line.pop(ticket, None)
            self._leave(ticket)
            raise
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        self._running.pop(ticket, None)
        self._begun.discard(ticket)
        if not self._running:
            self._quiet.set()
        self._admit()

    def _admit(self) -> None:
        while self._open and (ticket := choose(self._load(), self._line)) is not None:
            self._running[ticket] = ticket.bytes
            self._quiet.clear()
            future = self._line.pop(ticket)
            if not future.done():
                future.set_result(None)

    def _load(self) -> Load:
        return Load(
            slots=self._slots,
            busy=len(self._running),
            busy_long=sum(not ticket.short for ticket in self._running),
            spool_bytes=self.spool_bytes + self.reserved_bytes,
            max_spool_bytes=self._limits.max_spool_bytes,
        )

    def _worst(self, request: MediaRequest) -> int:
        source = len(request.data or b"") if request.url is None else self._limits.max_bytes
        return source + self._limits.max_decoded_bytes

    async def _attempt(
        self, request: MediaRequest, ticket: Ticket, on_pieces: OnPieces | None, on_whole: OnWhole | None
    ) -> MediaDone:
        sound, source = self._spool.names(request.job)
        # Where there is but one process, short work would stand back with it.
        patient = self._slots > 1 and not request.short
        job = {"t": "job", "spool": str(sound), "temp": str(source), "patient": patient, **_source(request)}
        most_s = self._limits.max_chunk_s
        early: list[Piece] = []
        kept = False

        def tell(frame: Frame) -> None:
            found = pieces_of(frame, early, self._spool.samples(sound), most_s)
            if frame["t"] == "whole":
                self._offer_whole(ticket, sound, found, on_whole)
                return
            early.extend(found)
            self._begun.add(ticket)
            if on_pieces is not None and found:
                self._spool.lend(sound)
                on_pieces(str(sound), found)

        try:
            if request.data is not None:
                await self._hand_over(source, request.data)
            answer = await self._run(job, ticket, tell)
            samples = self._spool.samples(sound)
            done = done_of(answer, str(sound), early, samples, most_s)
            self._keep(sound, samples)
            kept = True
            return done
        except WrongAnswer as exc:
            log.warning("A media process gave a wrong answer: %s", exc)
            raise _crashed("The process that decoded the input gave a wrong answer.") from exc
        finally:
            source.unlink(missing_ok=True)
            if not kept:
                self._spool.drop(sound)

    def _offer_whole(
        self, ticket: Ticket, sound: Path, found: tuple[Piece, ...], on_whole: OnWhole | None
    ) -> None:
        if on_whole is None or len(found) != 1:
            return
        self._spool.lend(sound)
        # Whoever is asked must not take this job for one that is still to come.
        self._begun.add(ticket)
        if not on_whole(str(sound), found[0]):
            self._begun.discard(ticket)

    def _keep(self, sound: Path, samples: int) -> None:
        try:
            self._spool.keep(sound, samples)
        except (ValueError, OSError) as exc:
            raise WrongAnswer("a spool file that is none") from exc

    async def _hand_over(self, path: Path, data: bytes) -> None:
        if len(data) > self._limits.max_bytes:
            limit = self._limits.max_bytes
            raise MediaError("too_large", f"The input (inline) has {len(data)} bytes; the limit is {limit}.")
        writing = asyncio.ensure_future(asyncio.to_thread(self._spool.write, path, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be stopped; its file must not appear after the clean-up.
            await asyncio.wait([writing])
            raise
        except OSError as exc:
            raise MediaError("spool_full", "There is no room left for the input.", retryable=True) from exc

    async def _run(self, job: Frame, ticket: Ticket, on_found: Callable[[Frame], None]) -> Frame:
        """The answer of a process: done or error. Raises MediaError where there is none."""
        for last in (False, True):
            process = await self._take(patient=bool(job["patient"]))
            try:
                answer = await self._ask(process, job, ticket, on_found)
            except ProcessGone as exc:
                await self._retire(process)
                if not self._open:
                    raise _stopped() from exc
                log.warning("A media process died: %s", exc.reason)
                # One that died while idle says nothing about this job, which gets another.
                if exc.started or last:
                    raise _crashed("The process that decoded the input died.") from exc
            except BaseException:
                await self._retire(process)
                raise
            else:
                self._give_back(process)
                return answer
        raise AssertionError("unreachable")

    async def _ask(
        self, process: MediaProcess, job: Frame, ticket: Ticket, on_found: Callable[[Frame], None]
    ) -> Frame:
        decoding = False
        begun = asyncio.get_running_loop().time()
        limit = self._limits.timeout_s

        def on_long() -> None:
            # What stands back may take longer, but not stand still.
            if job["patient"]:
                now = asyncio.get_running_loop().time()
                bound.reschedule(min(now + limit, begun + STANDING_BACK * limit))

        def on_decoding(fetched: int) -> None:
            nonlocal decoding
            decoding = True
            self._running[ticket] = self._limits.max_decoded_bytes + fetched
            self._admit()

        try:
            async with asyncio.timeout(limit) as bound:
                return await process.run(job, on_decoding, on_long, on_found)
        except TimeoutError as exc:
            doing = "decode" if decoding else "fetch"
            message = f"The input took longer than {limit:g} s to {doing}."
            raise MediaError("media_timeout", message, retryable=not decoding) from exc

    # --- processes ---------------------------------------------------------------------------

    def _heat(self) -> None:
        self._warm.append(asyncio.create_task(self._spawn(), name="media process"))

    async def _spawn(self) -> MediaProcess:
        process = await MediaProcess.spawn(self._limits)
        self._processes.add(process)
        return process

    async def _take(self, *, patient: bool) -> MediaProcess:
        """A live process: one for each slot is warm or on its way. Raises MediaError where none starts."""
        while self._open:
            task = self._warm.pop(_fittest(self._warm, patient))
            try:
                process = await asyncio.shield(task)
            except asyncio.CancelledError:
                # Either the caller gives up, or `stop` took the process away.
                if task.cancelled():
                    raise _stopped() from None
                self._warm.append(task)
                raise
            except (ProcessGone, OSError) as exc:
                self._reheat()
                log.error("A media process does not start: %s", exc)
                raise _crashed("The process that decodes inputs does not start.") from exc
            if process.alive:
                return process
            await self._retire(process)
        raise _stopped()

    def _give_back(self, process: MediaProcess) -> None:
        # One that stands back does so for ever; there must be one that does not.
        none_left = len(self._processes) == self._slots and all(one.patient for one in self._processes)
        if process.jobs >= self._recycle_after or none_left or not self._open:
            self._reheat()
            self._do(self._bury(process))
            return
        ready: asyncio.Future[MediaProcess] = asyncio.get_running_loop().create_future()
        ready.set_result(process)
        self._warm.insert(0, ready)

    async def _retire(self, process: MediaProcess) -> None:
        """Kills a process and starts another in its place. Goes on to its end if the caller is cancelled."""
        process.end()
        self._reheat()
        await self._do(self._bury(process))

    async def _bury(self, process: MediaProcess) -> None:
        await process.kill()
        process.close()
        self._processes.discard(process)

    def _reheat(self) -> None:
        if self._open:
            self._heat()

    def _do(self, chore: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return asyncio.shield(task)


def _fittest(warm: Sequence[asyncio.Future[MediaProcess]], patient: bool) -> int:
    """Which of these to take: one that stands back for patient work, and for other work one that does not."""
    for index, one in enumerate(warm):
        ready = one.done() and not one.cancelled() and one.exception() is None
        if ready and one.result().patient == patient:
            return index
    return 0


def _source(request: MediaRequest) -> Frame:
    if request.url is not None:
        return {"kind": "url", "source": request.url}
    if request.path is not None:
        return {"kind": "path", "source": request.path}
    return {"kind": "data", "source": ""}


def _crashed(message: str) -> MediaError:
    return MediaError("media_crashed", message, retryable=True)


def _stopped() -> MediaError:
    return MediaError("media_stopped", "The worker is stopping.", retryable=True)
