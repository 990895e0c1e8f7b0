"""Where it is asked for, a chunk knows the text before it, and waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.fake import FakeConfig
from engine.protocol import ChunkRequest, DecodeOptions
from queueing.client import Client
from tests.support.worker_process import speech, write_wav
from tests.worker.conftest import StartWorker
from tests.worker.test_joining import done
from worker.context import with_context

REQUEST = ChunkRequest("b", "j", "tiny.en", "/spool", 0, 16_000, DecodeOptions(prompt="Nagg, Nell"))


def test_the_text_before_stands_behind_the_prompt() -> None:
    """The job's own prompt stays, and all other options too."""
    told = with_context(REQUEST, done((0, 1, " Do you hear me? ")))
    assert told.options == replace(REQUEST.options, prompt="Nagg, Nell Do you hear me?")
    assert replace(told, options=REQUEST.options) == REQUEST


def test_doubtful_text_is_no_context() -> None:
    """What was sampled at a high temperature is not handed on."""
    assert with_context(REQUEST, replace(done((0, 1, "la la la")), temperature=0.6)) == REQUEST


def test_without_prompt_and_text_there_is_none() -> None:
    """Silence before a chunk gives it no prompt."""
    bare = replace(REQUEST, options=DecodeOptions())
    assert with_context(bare, done()) == bare


def test_chunks_run_one_after_another(start_worker: StartWorker, client: Client, tmp_path: Path) -> None:
    """Of a job that asks for context no two chunks are rows of one step, and all of its text comes back."""
    # Long enough that chunks which may run together do.
    worker = start_worker(fake=FakeConfig(step_s=0.02, decode_steps=50))
    recording = write_wav(tmp_path / "long.wav", speech(40.0))
    apart, together = (client.submit(recording, carry_context=asked) for asked in (True, False))
    texts = [client.result(job, timeout=60).text for job in (apart, together)]
    assert texts[0] == texts[1]
    rows = {job: [one["jobs"].count(job) for one in worker.steps()] for job in (apart, together)}
    assert (max(rows[apart]), max(rows[together])) == (1, 2)
