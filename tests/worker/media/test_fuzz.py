import asyncio

import numpy as np

from worker.media.types import MediaDone, MediaError, MediaRequest

KINDS = ["wav", "flac", "aiff", "w64", "caf", "au", "ogg", "opus", "mp3", "aac", "amr"]
KINDS += ["m4a", "faststart.m4a", "fragmented.mp4", "webm", "live.webm"]
ROUNDS = 8
FINAL = {
    "not_audio",
    "no_audio_stream",
    "empty_audio",
    "empty_input",
    "truncated_input",
    "corrupt_audio",
    "too_long",
}


def damage(data, dice):
    """Cut somewhere, and flip some bits, half of the time in the first 200 bytes."""
    broken = bytearray(data[: dice.integers(1, len(data))] if dice.random() < 0.5 else data)
    for _ in range(dice.integers(0, 20)):
        within = min(len(broken), 200) if dice.random() < 0.5 else len(broken)
        broken[dice.integers(0, within)] ^= 1 << dice.integers(0, 8)
    return bytes(broken)


def test_damaged_files_end_as_done_or_as_a_final_error(supervise, make):
    """Whatever is wrong with a file, the job ends in time with an answer of ours, and no process dies of it."""
    dice = np.random.default_rng(20_240)
    inputs = [damage(make(kind, seconds=1).read_bytes(), dice) for kind in KINDS for _ in range(ROUNDS)]

    async def run():
        async with supervise(processes=2, timeout_s=20) as supervisor:
            before = supervisor.pids

            async def one(data):
                try:
                    done = await supervisor.prepare(MediaRequest("fuzz", data=data, short=True))
                except MediaError as error:
                    return error.code
                assert isinstance(done, MediaDone)
                assert all(0 <= piece.offset < piece.end <= done.duration_s * 16_000 for piece in done.pieces)
                supervisor.discard(done.spool)
                return "done"

            outcomes = await asyncio.gather(*(one(data) for data in inputs))
            assert set(outcomes) <= FINAL | {"done"}
            assert {"done", "truncated_input", "not_audio"} <= set(outcomes)
            assert supervisor.pids == before
            assert not list(supervisor._spool.folder.iterdir())

    asyncio.run(run())
