import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from worker.media import frames
from worker.media.child import NICE
from worker.media.supervisor import MediaSupervisor
from worker.media.types import MediaError, MediaLimits, MediaRequest

ROOT = Path(__file__).parents[3]


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def files(supervisor):
    return list(supervisor._spool.folder.iterdir())


def read(path):
    return Path(path).read_bytes()


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def sound(supervisor):
    """Whether some job has begun to write its spool file."""
    return any(path.stat().st_size for path in supervisor._spool.folder.glob("*.pcm"))


async def failure(supervisor, **request):
    with pytest.raises(MediaError) as caught:
        await supervisor.prepare(MediaRequest("job", **request))
    return caught.value.code, caught.value.retryable


def test_a_file_becomes_a_private_spool_file_with_pieces(supervise, make):
    """The answer names 16 kHz s16 mono that this user alone can read, and where the speech is in it."""

    async def run():
        async with supervise() as supervisor:
            done = await supervisor.prepare(MediaRequest("job/1", path=str(make("m4a", seconds=6))))
            samples = np.fromfile(done.spool, "<i2")
            assert done.duration_s * 16_000 == len(samples)
            assert mode(done.spool) == 0o600
            assert done.format == "mov/aac"
            assert 3 < done.speech_s < 6
            (piece,) = done.pieces
            assert 0 <= piece.start_s < piece.start_s + piece.duration_s <= done.duration_s
            assert supervisor.spool_bytes == 2 * len(samples)
            supervisor.discard(done.spool)
            supervisor.discard(done.spool)
            assert supervisor.spool_bytes == 0
            assert not files(supervisor)

    asyncio.run(run())


def test_a_path_a_url_and_inline_bytes_give_the_same(supervise, make, web):
    """Where the file comes from changes nothing, and no copy of it is left."""

    async def run():
        path = make("wav", seconds=2)
        async with supervise(processes=2) as supervisor:
            sources = ({"path": str(path)}, {"url": web.url + "/audio"}, {"data": path.read_bytes()})
            done = await asyncio.gather(*(supervisor.prepare(MediaRequest("a", **s)) for s in sources))
            assert len({(d.duration_s, d.pieces, d.format) for d in done}) == 1
            assert len({read(d.spool) for d in done}) == 1
            assert not list(supervisor._spool.folder.glob("*.input"))

    asyncio.run(run())


def test_inline_bytes_are_off_the_disk_while_they_are_decoded(supervise, silence, wait_until):
    """The file that carried them has no name any more once decoding has begun."""

    async def run():
        async with supervise() as supervisor:
            data = silence(1_200).read_bytes()
            job = asyncio.create_task(supervisor.prepare(MediaRequest("a", data=data)))
            await wait_until(lambda: sound(supervisor))
            assert [path.suffix for path in files(supervisor)] == [".pcm"]
            job.cancel()
            await asyncio.wait([job])

    asyncio.run(run())


def test_errors_of_the_input_come_through_and_leave_nothing(supervise, tmp_path, web, film):
    """A final error keeps its code, the process lives on, and the folder is empty."""

    async def run():
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "text.wav").write_text("no sound here" * 100)
        async with supervise(max_bytes=1 << 20) as supervisor:
            before = supervisor.pids
            for request, outcome in [
                ({"path": str(tmp_path / "none.wav")}, ("input_not_found", False)),
                ({"path": str(tmp_path)}, ("input_not_file", False)),
                ({"path": str(tmp_path / "fifo")}, ("input_not_file", False)),
                ({"path": str(tmp_path / "text.wav")}, ("not_audio", False)),
                ({"path": str(film)}, ("no_audio_stream", False)),
                ({"data": b""}, ("empty_input", False)),
                ({"data": bytes((1 << 20) + 1)}, ("too_large", False)),
                ({"url": web.url + "/404"}, ("input_not_found", False)),
                ({"url": web.url + "/500"}, ("fetch_failed", True)),
                ({"url": web.url + "/endless"}, ("too_large", False)),
                ({"url": "file:///etc/passwd"}, ("url_not_allowed", False)),
            ]:
                assert await failure(supervisor, **request) == outcome
                assert not files(supervisor)
            assert supervisor.pids == before

    asyncio.run(run())


def test_decoding_that_takes_too_long_is_killed_for_good(supervise, silence):
    """A job past its limit ends with a final media_timeout, and the next job finds a fresh process."""

    async def run():
        async with supervise(timeout_s=0.4) as supervisor:
            (pid,) = supervisor.pids
            assert await failure(supervisor, path=str(silence(7_200))) == ("media_timeout", False)
            assert gone(pid)
            assert not files(supervisor)
            assert (await supervisor.prepare(MediaRequest("b", path=str(silence(1))))).pieces == ()

    asyncio.run(run())


def test_a_download_that_takes_too_long_may_be_tried_again(supervise, web):
    """A server that hangs inside the wall-clock limit is not the input's fault."""

    async def run():
        async with supervise(timeout_s=0.4) as supervisor:
            assert await failure(supervisor, url=web.url + "/hang") == ("media_timeout", True)

    asyncio.run(run())


def test_a_process_killed_in_the_middle_of_a_job_costs_that_job_alone(supervise, silence, wait_until):
    """SIGKILL of a busy process is a retryable media_crashed, and another takes its place."""

    async def run():
        async with supervise() as supervisor:
            (pid,) = supervisor.pids
            job = asyncio.create_task(failure(supervisor, path=str(silence(7_200))))
            await wait_until(lambda: sound(supervisor))
            os.kill(pid, signal.SIGKILL)
            assert await job == ("media_crashed", True)
            assert not files(supervisor)
            await supervisor.prepare(MediaRequest("b", path=str(silence(1))))
            assert supervisor.pids
            assert pid not in supervisor.pids

    asyncio.run(run())


def test_a_process_killed_while_idle_costs_nobody_anything(supervise, silence):
    """A job that meets a dead process gets another instead of a failure."""

    async def run():
        async with supervise() as supervisor:
            os.kill(supervisor.pids[0], signal.SIGKILL)
            assert (await supervisor.prepare(MediaRequest("a", path=str(silence(1))))).duration_s == 1

    asyncio.run(run())


def test_a_process_that_swells_ends_itself(supervise, silence):
    """Memory over the limit is a crash, not a machine that swaps."""

    async def run():
        async with supervise(max_rss_bytes=1 << 20) as supervisor:
            assert await failure(supervisor, path=str(silence(7_200))) == ("media_crashed", True)

    asyncio.run(run())


def test_cancelling_kills_the_process_that_works_on_it(supervise, silence, wait_until):
    """When the caller gives up, the process is gone and so are its files."""

    async def run():
        async with supervise() as supervisor:
            (pid,) = supervisor.pids
            job = asyncio.create_task(supervisor.prepare(MediaRequest("a", path=str(silence(7_200)))))
            await wait_until(lambda: sound(supervisor))
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert gone(pid)
            assert not files(supervisor)
            assert supervisor.busy == 0
            await supervisor.prepare(MediaRequest("b", path=str(silence(1))))

    asyncio.run(run())


def test_cancelling_in_line_takes_nothing(supervise, silence, web, wait_until):
    """A job that waits leaves the line, and the one that runs is not touched."""

    async def run():
        async with supervise() as supervisor:
            running = asyncio.create_task(supervisor.prepare(MediaRequest("a", url=web.url + "/hang")))
            await wait_until(web.hanging.is_set)
            waiting = asyncio.create_task(supervisor.prepare(MediaRequest("b", path=str(silence(1)))))
            await wait_until(lambda: supervisor.waiting == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (supervisor.busy, supervisor.waiting) == (1, 0)
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(run())


def test_short_work_passes_long_work(supervise, silence, web, wait_until):
    """With one slot kept, a short job is done while two long ones hold or wait for the other."""

    async def run():
        async with supervise(processes=2) as supervisor:
            assert supervisor.has_room()
            long = [
                asyncio.create_task(supervisor.prepare(MediaRequest("a", url=web.url + "/hang")))
                for _ in "ab"
            ]
            await wait_until(lambda: supervisor.busy == 1 and supervisor.waiting == 1)
            assert supervisor.coming_soon == 0
            short = asyncio.create_task(
                supervisor.prepare(MediaRequest("b", path=str(silence(1)), short=True))
            )
            await asyncio.sleep(0)
            assert supervisor.coming_soon == 1
            assert (await short).duration_s == 1
            assert supervisor.coming_soon == 0
            assert (supervisor.busy, supervisor.waiting) == (1, 1)
            assert not supervisor.has_room()
            for job in long:
                job.cancel()
            await asyncio.wait(long)

    asyncio.run(run())


def test_the_spool_is_bounded(supervise, silence, wait_until):
    """A job waits while its worst case does not fit, and starts when a file is discarded."""

    async def run():
        worst = 10 * 32_000
        async with supervise(processes=2, max_duration_s=10, max_spool_bytes=worst + 1) as supervisor:
            path = str(silence(1))
            first = await supervisor.prepare(MediaRequest("a", path=path, short=True))
            second = asyncio.create_task(supervisor.prepare(MediaRequest("b", path=path, short=True)))
            await wait_until(lambda: supervisor.waiting == 1)
            assert (supervisor.busy, supervisor.has_room(short=True)) == (0, False)
            supervisor.discard(first.spool)
            await second
            assert (supervisor.spool_bytes, supervisor.reserved_bytes) == (32_000, 0)

    asyncio.run(run())


def test_processes_are_recycled(supervise, silence):
    """After so many jobs a process makes way for a fresh one, and jobs go on."""

    async def run():
        async with supervise(recycle_after=2) as supervisor:
            seen = []
            for _ in range(4):
                seen += supervisor.pids
                await supervisor.prepare(MediaRequest("a", path=str(silence(1))))
            assert len(set(seen)) >= 2

    asyncio.run(run())


def test_stopping_ends_running_and_waiting_jobs(supervise, web, wait_until):
    """A stop in the middle of work gives every caller a retryable media_stopped; so does a call afterwards."""

    async def run():
        async with supervise() as supervisor:
            jobs = [asyncio.create_task(failure(supervisor, url=web.url + "/hang")) for _ in range(2)]
            await wait_until(web.hanging.is_set)
            await supervisor.stop()
            assert await asyncio.gather(*jobs) == [("media_stopped", True)] * 2
            assert await failure(supervisor, url=web.url) == ("media_stopped", True)
            await supervisor.stop()

    asyncio.run(run())


def test_stopping_before_starting_is_harmless(tmp_path):
    """A worker that fails early can stop what it never started."""

    async def run():
        await MediaSupervisor(tmp_path / "spool", MediaLimits()).stop()
        assert not (tmp_path / "spool").exists()

    asyncio.run(run())


def test_it_can_start_again_after_a_stop(tmp_path, silence):
    """A stopped supervisor is as good as a new one."""

    async def run():
        supervisor = MediaSupervisor(tmp_path / "spool", MediaLimits(), 1)
        for _ in range(2):
            await supervisor.start()
            await supervisor.prepare(MediaRequest("a", path=str(silence(1))))
            await supervisor.stop()
        assert not (tmp_path / "spool").exists()

    asyncio.run(run())


def test_processes_that_cannot_start_are_an_error_at_start(tmp_path, monkeypatch):
    """A worker whose decoders do not import says so at once, with the reason, and leaves nothing behind."""
    (tmp_path / "soundfile.py").write_text("raise ImportError('broken on purpose')")
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    monkeypatch.setattr("worker.media.process._environment", lambda: environment)

    async def run():
        supervisor = MediaSupervisor(tmp_path / "spool", MediaLimits(), 1)
        try:
            with pytest.raises(MediaError, match=r"No media process starts: soundfile.py:1 ImportError"):
                await supervisor.start()
            assert supervisor.pids == ()
        finally:
            await supervisor.stop()

    asyncio.run(run())
    assert not (tmp_path / "spool").exists()


def test_memory_stays_flat_over_a_long_file(supervise, silence, wait_until):
    """A quarter of an hour of stereo at 44.1 kHz, 159 MB of wav, take less than 40 MB above an idle process."""

    async def run():
        async with supervise() as supervisor:
            process = psutil.Process(supervisor.pids[0])
            await supervisor.prepare(MediaRequest("a", path=str(silence(2, rate=44_100, channels=2))))
            idle = highest = process.memory_info().rss
            path = silence(900, rate=44_100, channels=2)
            job = asyncio.create_task(supervisor.prepare(MediaRequest("b", path=str(path))))
            while not (await asyncio.wait([job], timeout=0.02))[0]:
                highest = max(highest, process.memory_info().rss)
            assert job.result().duration_s == 900
            assert highest - idle < 40 << 20

    asyncio.run(run())


PARENT = """
import asyncio, sys
from pathlib import Path
from worker.media.supervisor import MediaSupervisor
from worker.media.types import MediaLimits, MediaRequest

async def main():
    supervisor = MediaSupervisor(Path(sys.argv[1]), MediaLimits(), 2)
    await supervisor.start()
    job = asyncio.create_task(supervisor.prepare(MediaRequest("a", path=sys.argv[2])))
    while not any(path.stat().st_size for path in Path(sys.argv[1]).glob("*.pcm")):
        await asyncio.sleep(0.01)
    print(*supervisor.pids, flush=True)
    await job

asyncio.run(main())
"""


def test_processes_end_within_a_second_of_the_worker(tmp_path, silence):
    """SIGKILL of the worker ends its media processes, the one in the middle of decoding too."""
    command = (sys.executable, "-c", PARENT, str(tmp_path / "spool"), str(silence(7_200)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}) as worker:
        assert worker.stdout is not None
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        assert len(pids) == 2
        worker.kill()
    deadline = time.monotonic() + 1
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, "A media process outlived its worker."
        os.sched_yield()


def test_the_next_life_sweeps_what_a_killed_worker_left(tmp_path):
    """Spool files of a worker that was killed are gone once the next has started; its folder stays."""
    old = tmp_path / "spool" / "old-000001.pcm"
    old.parent.mkdir()
    old.write_bytes(bytes(10))

    async def run():
        supervisor = MediaSupervisor(old.parent, MediaLimits(), 1)
        await supervisor.start()
        left = files(supervisor)
        await supervisor.stop()
        return left

    assert asyncio.run(run()) == []
    assert old.parent.is_dir()


def test_what_nobody_waits_for_stands_back(supervise, silence):
    """One of two processes takes long work, and lets all others go first once it knows; short work gets the other."""

    async def run():
        async with supervise(processes=2) as supervisor:
            await supervisor.prepare(MediaRequest("a", path=str(silence(1))))
            assert {psutil.Process(pid).nice() for pid in supervisor.pids} == {psutil.Process().nice()}
            for _ in range(2):
                path = str(silence(31))
                await supervisor.prepare(MediaRequest("a", path=path))
                await supervisor.prepare(MediaRequest("b", path=path, short=True))
            mine = psutil.Process().nice()
            assert sorted(psutil.Process(pid).nice() - mine for pid in supervisor.pids) == [0, NICE]

    asyncio.run(run())


def test_what_stands_back_has_time_while_it_goes_on(supervise, silence, monkeypatch):
    """The limit of time begins anew with each minute of a long file that stands back; other work has it once."""

    async def run():
        async with supervise(processes=2, timeout_s=600) as supervisor:
            bounds = []
            plain = asyncio.timeout

            def timeout(seconds):
                bound = plain(seconds)
                if seconds == 600:
                    bound_of = bound.reschedule
                    bound.reschedule = lambda when: (bounds.append(when), bound_of(when))
                return bound

            monkeypatch.setattr(asyncio, "timeout", timeout)
            await supervisor.prepare(MediaRequest("a", path=str(silence(170))))
            patient = len(bounds)
            await supervisor.prepare(MediaRequest("b", path=str(silence(170)), short=True))
            # Each is set once as it begins.
            assert (patient, len(bounds)) == (1 + 3, 1 + 3 + 1)
            assert bounds == sorted(bounds)

    asyncio.run(run())


def test_a_process_that_is_alone_keeps_its_place(supervise, silence):
    """Where one process does all, it does not stand back for ever after its first long file."""

    async def run():
        async with supervise() as supervisor:
            await supervisor.prepare(MediaRequest("a", path=str(silence(31))))
            assert psutil.Process(supervisor.pids[0]).nice() == psutil.Process().nice()

    asyncio.run(run())


def test_the_environment_of_the_worker_stays_with_the_worker(supervise, monkeypatch):
    """A process that reads untrusted bytes does not hold the worker's passwords."""
    monkeypatch.setenv("REDIS_PASSWORD", "secret")

    async def run():
        async with supervise() as supervisor:
            process = psutil.Process(supervisor.pids[0])
            assert "REDIS_PASSWORD" not in process.environ()
            assert "secret" not in " ".join(process.cmdline())

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"t": 1}'])
def test_a_broken_frame_is_told_apart_from_an_end(body):
    """What is no frame raises BrokenFrame, a closed socket EOFError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(len(body).to_bytes(4, "big") + body)
        with pytest.raises(frames.BrokenFrame):
            frames.receive(theirs)
        ours.sendall(frames.pack({"t": "x", "n": [1]}))
        assert frames.receive(theirs) == {"t": "x", "n": [1]}
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(frames.BrokenFrame):
            frames.receive(theirs)
        ours.sendall(b"\0\0")
        ours.close()
        with pytest.raises(EOFError):
            frames.receive(theirs)
    assert json.loads(frames.pack({"t": "x"})[4:]) == {"t": "x"}
