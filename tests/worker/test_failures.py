"""Jobs and models that fail in a worker, and how often they are tried."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from engine.fake import FakeConfig, Poison
from queueing.client import Client
from queueing.errors import JobDead
from tests.support.waiting import wait_until
from tests.support.worker_process import speech, write_wav
from tests.worker.conftest import StartWorker


def test_a_job_that_goes_on_failing_is_dead(
    start_worker: StartWorker, client: Client, tmp_path: Path
) -> None:
    """An error that may pass is tried max_attempts times, its failures are noted, and its neighbours are none the
    worse."""
    bad = write_wav(tmp_path / "bad.wav", speech(2.0), Poison.NUMERIC)
    good = write_wav(tmp_path / "good.wav", speech(2.0))
    start_worker(retry_base_s=0.05)
    failing, fine = client.submit(bad, max_attempts=3), client.submit(good)
    with pytest.raises(JobDead) as dead:
        client.result(failing, timeout=60)
    assert dead.value.error.code == "numeric"
    status = client.status(failing)
    assert (status.attempt, status.tries) == (3, 3)
    assert [note.attempt for note in status.notes] == [1, 2, 3]
    assert client.result(fine, timeout=60).attempt == 1


def test_a_device_that_breaks_costs_the_innocent_nothing(
    start_worker: StartWorker, client: Client, clip: Path, tmp_path: Path
) -> None:
    """Where the device throws in the middle of a batch, as it does out of memory, what shared the batch is done."""
    bad = write_wav(tmp_path / "bad.wav", speech(2.0), Poison.ERROR)
    worker = start_worker(retry_base_s=0.05)
    jobs = client.submit_many([clip, bad, clip])
    for job in (jobs[0], jobs[2]):
        assert client.result(job, timeout=60).text
    with pytest.raises(JobDead) as dead:
        client.result(jobs[1], timeout=60)
    assert dead.value.error.code == "poison"
    assert worker.process.poll() is None


def test_a_segmentation_fault_is_an_exit_like_another(
    start_worker: StartWorker, client: Client, clip: Path
) -> None:
    """SIGSEGV of the engine leaves the worker alive, names the signal in health, and the job is run again."""
    worker = start_worker(fake=FakeConfig(step_s=0.3, decode_steps=10))
    job = client.submit(clip)
    wait_until(lambda: worker.health().get("running"), "a job in the engine")
    psutil.Process(worker.engine_pid()).send_signal(signal.SIGSEGV)
    assert client.result(job, timeout=60).attempt == 2
    assert "SIGSEGV" in worker.health()["engine"]["last_exit"]


def test_a_model_that_fails_to_load_is_named(start_worker: StartWorker) -> None:
    """A worker whose only model does not load lives, is unready, and says why."""
    worker = start_worker(model="nobody-has-this")
    why = wait_until(lambda: worker.health().get("failed_models"), "the failure")
    assert set(why) == {"nobody-has-this"}
    assert any("no_model_loaded" in reason for reason in worker.health()["reasons"])
    assert worker.process.poll() is None
