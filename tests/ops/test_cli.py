"""The contract of the command line: exit codes, and what stands on standard output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ops.embedded import EmbeddedServer, free_port
from queueing.connect import connect
from queueing.job import parse_job
from queueing.keys import Keys
from tests.ops.stand_in import HELLO, clean_environment, failed


def rows(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- submit ---


def test_submit_prints_job_input_and_state(cli, tmp_path: Path) -> None:
    """Without --wait, --json prints for each input exactly its job, the input as given, and its state."""
    done = cli("submit", "a.wav", "https://example.org/b.mp3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(sorted(row), row["input"], row["state"]) for row in rows(done)] == [
        (["input", "job", "state"], "a.wav", "waiting"),
        (["input", "job", "state"], "https://example.org/b.mp3", "waiting"),
    ]


def test_a_file_is_sent_as_its_absolute_path(cli, stand_in, tmp_path: Path) -> None:
    """A relative name reaches the worker as a path that means the same anywhere on the machine."""
    cli("submit", "a.wav", "--wait", cwd=tmp_path)
    assert parse_job(stand_in.taken[0].payload).input.path == str(tmp_path / "a.wav")


def test_upload_sends_the_bytes(cli, stand_in, server, queue_name, tmp_path: Path) -> None:
    """With --upload the job holds the file itself: its length is that of the file."""
    (tmp_path / "a.wav").write_bytes(b"RIFF....")
    cli("submit", tmp_path / "a.wav", "--upload", "--wait")
    sent = parse_job(stand_in.taken[0].payload).input
    assert (sent.type, sent.size) == ("inline", 8)


def test_options_reach_the_job(cli, stand_in) -> None:
    """Kind, lane, model and language of the command line are those of the job."""
    cli(
        "submit",
        "a.wav",
        "--wait",
        "--kind",
        "translate",
        "--lane",
        "bulk",
        "--model",
        "tiny.en",
        "--language",
        "de",
    )
    job = parse_job(stand_in.taken[0].payload)
    assert (job.kind, job.lane, job.model, job.options.language) == ("translate", "bulk", "tiny.en", "de")


def test_the_model_comes_from_the_environment(cli) -> None:
    """DECIBATCH_MODEL is the model of a job that names none."""
    (row,) = rows(cli("submit", "a.wav", "--json", env={"DECIBATCH_MODEL": "other"}))
    assert json.loads(cli("status", row["job"], "--json").stdout)["model"] == "other"


def test_wait_json_tells_everything(cli, stand_in) -> None:
    """With --wait an object holds the text, its segments, language, duration, timings and no error."""
    done = cli("submit", "a.wav", "--wait", "--json")
    (row,) = rows(done)
    assert done.returncode == 0
    assert row["state"] == "done"
    assert row["error"] is None
    expected = HELLO.model_dump(mode="json")
    names = ("text", "segments", "language", "duration_s", "timings")
    assert {name: row[name] for name in names} == {name: expected[name] for name in names}
    assert list(row["timings"]) == ["queued", "media", "waiting", "engine", "total"]


def test_objects_come_in_the_order_of_the_inputs(cli, stand_in) -> None:
    """Line n is about input n, whichever job ended first."""
    names = [f"{number}.wav" for number in range(12)]
    assert [row["input"] for row in rows(cli("submit", *names, "--wait", "--json"))] == names


def test_wait_prints_the_transcript_alone(cli, stand_in) -> None:
    """Standard output of one input is its transcript; progress is on standard error."""
    done = cli("submit", "a.wav", "--wait")
    assert done.stdout == "Hello there.\n"
    assert "a.wav: done" in done.stderr


@pytest.mark.parametrize(
    ("form", "begins"),
    [("srt", "1\n00:00:00,000 --> 00:00:01,250\n"), ("vtt", "WEBVTT\n\n"), ("json", '{"text"')],
)
def test_wait_prints_the_format_asked_for(cli, stand_in, form: str, begins: str) -> None:
    """Each format begins as its readers expect."""
    assert cli("submit", "a.wav", "--wait", "--format", form).stdout.startswith(begins)


def test_progress_lines_hold_no_transcript(cli, stand_in) -> None:
    """What is heard is printed once, as the result, and nowhere on standard error."""
    assert "Hello" not in cli("submit", "a.wav", "--wait", "--json").stderr


def test_a_failed_job_exits_3(cli, stand_in) -> None:
    """A job that failed gives its error in its object and exit code 3."""
    stand_in.answer = failed("input_not_found")
    done = cli("submit", "absent.wav", "--wait", "--json")
    (row,) = rows(done)
    assert done.returncode == 3
    assert row["state"] == "failed"
    assert row["error"] == {"code": "input_not_found", "message": "no such file", "retryable": False}


def test_a_missing_upload_is_a_failed_job(cli, tmp_path: Path) -> None:
    """An upload that is not there fails with the code that a worker would give, and exits 3."""
    done = cli("submit", tmp_path / "absent.wav", "--upload", "--json")
    (row,) = rows(done)
    assert (done.returncode, row["state"], row["error"]["code"]) == (3, "failed", "input_not_found")


def test_an_upload_that_is_too_large_is_a_failed_job(cli, tmp_path: Path) -> None:
    """An upload over the limit is told before it is sent."""
    (tmp_path / "a.wav").write_bytes(b"x")
    done = cli(
        "submit", tmp_path / "a.wav", "--upload", "--json", env={"DECIBATCH_MAX_INLINE_MB_PER_JOB": "0"}
    )
    assert (done.returncode, rows(done)[0]["error"]["code"]) == (3, "too_large")


def test_a_full_queue_is_a_failed_job(cli) -> None:
    """A submission that the queue refuses exits 3 and says that it may be tried again."""
    done = cli("submit", "a.wav", "b.wav", "--json", env={"DECIBATCH_MAX_WAITING": "1"})
    second = rows(done)[1]
    assert (done.returncode, second["error"]["code"], second["error"]["retryable"]) == (3, "queue_full", True)


def test_a_timeout_exits_4(cli) -> None:
    """With nobody working, --timeout ends the wait with exit code 4 and the state the job still has."""
    done = cli("submit", "a.wav", "--wait", "--timeout", "0.2", "--json")
    assert (done.returncode, rows(done)[0]["state"]) == (4, "waiting")


def test_a_timeout_outranks_a_failure(cli, tmp_path: Path) -> None:
    """Where one input failed and another was not done in time, the exit code is 4."""
    (tmp_path / "a.wav").write_bytes(b"x")
    inputs = (tmp_path / "absent.wav", tmp_path / "a.wav")
    done = cli("submit", *inputs, "--upload", "--wait", "--timeout", "0.2", "--json")
    assert [row["state"] for row in rows(done)] == ["failed", "waiting"]
    assert done.returncode == 4


@pytest.mark.parametrize(
    "args",
    [
        ["submit"],
        ["submit", "a.wav", "--lane", "fast"],
        ["submit", "a.wav", "--format", "docx", "--wait"],
        ["submit", "a.wav", "b.wav", "--wait", "--format", "srt"],
        ["submit", "ftp://example.org/a.wav"],
        ["submit", "a.wav", "--model", "no/such name"],
        ["frobnicate"],
    ],
)
def test_wrong_usage_exits_2(cli, args: list[str]) -> None:
    """A command that cannot be meant is refused with 2, and without a traceback."""
    done = cli(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_what_was_meant_is_named(cli) -> None:
    """A command that is nearly one is told with that one, and a variable that is nearly a setting as well."""
    done = cli("submitt", "a.wav")
    assert done.returncode == 2
    assert "No such command 'submitt'. Did you mean 'submit'?" in done.stderr
    done = cli("config", env={"DECIBATCH_REDIS_ULR": "redis://h"})
    assert done.returncode == 0
    assert done.stderr == "decibatch: DECIBATCH_REDIS_ULR is no setting; did you mean DECIBATCH_REDIS_URL?\n"


def test_interrupted_the_jobs_go_on(server: EmbeddedServer, queue_name: str) -> None:
    """^C during --wait exits 130, names the jobs, and leaves them waiting."""
    env = clean_environment(DECIBATCH_REDIS_URL=server.url, DECIBATCH_QUEUE=queue_name)
    command = [sys.executable, "-m", "decibatch", "submit", "a.wav", "b.wav", "--wait"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    waiting = subprocess.Popen(command, env=env, text=True, **pipes)
    assert waiting.stderr is not None
    # The first line on standard error says that the jobs are there and are followed.
    first = waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert first.startswith("2 jobs")
    assert waiting.returncode == 130
    assert "go on" in said
    with connect(server.url) as client:
        assert client.hget(Keys(queue_name).counts, "waiting") == b"2"


# --- status, result, cancel ---


def test_status_tells_the_state(cli) -> None:
    """The status of a job that waits is an object that says so."""
    (row,) = rows(cli("submit", "a.wav", "--json"))
    (status,) = rows(cli("status", row["job"], "--json"))
    assert (status["job"], status["state"], status["lane"], status["attempt"]) == (
        row["job"],
        "waiting",
        "normal",
        0,
    )


def test_result_prints_what_the_job_gave(cli, stand_in) -> None:
    """The result of a job that is done can be had later, in any format."""
    (row,) = rows(cli("submit", "a.wav", "--wait", "--json"))
    assert cli("result", row["job"], "--format", "vtt").stdout.startswith("WEBVTT")


def test_result_of_a_waiting_job_exits_4(cli) -> None:
    """A job that has not ended has no result yet: exit code 4, and nothing on standard output."""
    (row,) = rows(cli("submit", "a.wav", "--json"))
    done = cli("result", row["job"])
    assert (done.returncode, done.stdout) == (4, "")


def test_result_of_a_failed_job_exits_3(cli, stand_in) -> None:
    """A job that failed has no result: exit code 3 and its error in one sentence."""
    stand_in.answer = failed("not_audio")
    (row,) = rows(cli("submit", "a.wav", "--wait", "--json"))
    done = cli("result", row["job"])
    assert done.returncode == 3
    assert "not_audio" in done.stderr


def test_cancel_ends_a_waiting_job(cli) -> None:
    """A cancelled job is cancelled at once where nobody runs it."""
    (row,) = rows(cli("submit", "a.wav", "--json"))
    assert cli("cancel", row["job"]).stdout == "cancelled\n"
    assert rows(cli("status", row["job"], "--json"))[0]["state"] == "cancelled"


@pytest.mark.parametrize("command", ["status", "result", "cancel"])
def test_an_unknown_job_exits_6(cli, command: str) -> None:
    """A job that was never there exits 6, in one sentence."""
    done = cli(command, "0123456789abcdef")
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1


# --- the server ---


@pytest.mark.parametrize(
    "args", [["submit", "a.wav"], ["status", "0123456789abcdef"], ["result", "0123456789abcdef"], ["health"]]
)
def test_without_a_server_it_exits_5(cli, args: list[str]) -> None:
    """No server is exit code 5 and one sentence without a password or a traceback."""
    done = cli(*args, env={"DECIBATCH_REDIS_URL": f"redis://me:hunter2@127.0.0.1:{free_port()}/0"})
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "hunter2" not in done.stderr


def test_a_url_of_another_kind_exits_2(cli) -> None:
    """DECIBATCH_REDIS_URL that names no Redis is wrong usage, told without the URL itself."""
    done = cli("health", env={"DECIBATCH_REDIS_URL": "http://me:hunter2@host/"})
    assert done.returncode == 2
    assert "redis_url" in done.stderr
    assert "hunter2" not in done.stderr


def test_redis_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """`decibatch redis` answers on the port it was given, ends with 0 on SIGTERM, and leaves nothing running."""
    port = free_port()
    command = [sys.executable, "-m", "decibatch", "redis", "--port", str(port), "--dir", str(tmp_path)]
    running = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    url = running.stdout.readline().strip().rpartition("=")[2]
    family = psutil.Process(running.pid).children(recursive=True)
    with connect(url) as client:
        assert client.ping()
    running.terminate()
    running.communicate(timeout=20)
    assert running.returncode == 0
    assert url == f"redis://127.0.0.1:{port}/0"
    assert family
    assert not [process for process in family if process.is_running()]


def test_redis_on_a_taken_port_says_so(cli, server: EmbeddedServer, tmp_path: Path) -> None:
    """A port that somebody has is an error that names the way out."""
    done = cli("redis", "--port", server.port, "--dir", tmp_path)
    assert done.returncode == 1
    assert "--port" in done.stderr


# --- what is shown ---


def test_config_masks_the_password(cli) -> None:
    """The effective settings are shown with stars for the password, and with where they come from."""
    done = cli("config", "--json", env={"DECIBATCH_REDIS_URL": "redis://me:hunter2@host:1/0"})
    shown = json.loads(done.stdout)
    assert shown["redis_url"] == {"value": "redis://me:***@host:1/0", "from": "DECIBATCH_REDIS_URL"}
    assert shown["lease_s"] == {"value": 15.0, "from": "default"}


def test_a_wrong_setting_exits_2(cli) -> None:
    """A setting that cannot be used is named in one sentence."""
    done = cli("config", env={"DECIBATCH_BATCH_ITEMS": "many"})
    assert done.returncode == 2
    assert "batch_items" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_submit_loads_neither_mlx_nor_a_decoder() -> None:
    """What a client needs imports no MLX, no FFmpeg, no numpy."""
    program = (
        "import sys; import ops.commands.submit, ops.commands.jobs, ops.commands.common, queueing.client; "
        "print(sorted({'mlx', 'mlx_audio', 'av', 'numpy', 'soundfile'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


def test_without_the_extra_a_worker_says_what_to_install(cli, tmp_path: Path) -> None:
    """Where MLX is missing, `decibatch worker` names the extra to install."""
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'mlx' else f(n, *a)"
    program = f"{hide}; from ops.cli import main; main(['worker'])"
    env = clean_environment()
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'decibatch[worker]'" in done.stderr


# --- health ---


def say(server: EmbeddedServer, queue: str, name: str, **fields: object) -> None:
    keys = Keys(queue)
    with connect(server.url) as client:
        client.sadd(keys.workers, name)
        client.set(keys.worker(name), json.dumps({"worker": name, "models": ["tiny.en"], **fields}))


def test_health_of_nobody_is_1(cli) -> None:
    """Without a living worker health exits 1 and says so."""
    done = cli("health")
    assert done.returncode == 1
    assert "No worker" in done.stdout


def test_a_ready_worker_is_healthy(cli, server, queue_name) -> None:
    """One worker that is ready and progressing is enough for exit code 0."""
    say(server, queue_name, "a", ready=False, reasons=["engine_loading"], progress_s=0)
    say(server, queue_name, "b", ready=True, reasons=[], progress_s=0.1)
    done = cli("health", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert [(worker["worker"], worker["working"]) for worker in told["workers"]] == [
        ("a", False),
        ("b", True),
    ]


def test_a_worker_that_does_not_progress_is_not_healthy(cli, server, queue_name) -> None:
    """Ready is not enough: an engine that has not progressed for minutes makes health exit 1."""
    say(server, queue_name, "a", ready=True, reasons=[], progress_s=500)
    assert cli("health").returncode == 1


def test_the_reasons_are_shown(cli, server, queue_name) -> None:
    """The table says why a worker is not ready."""
    say(server, queue_name, "a", ready=False, reasons=["memory_pause"], progress_s=0)
    assert "memory_pause" in cli("health").stdout


def test_a_worker_gone_silent_is_not_listed(cli, server, queue_name) -> None:
    """A worker whose words have expired is not alive, though its name is still known."""
    with connect(server.url) as client:
        client.sadd(Keys(queue_name).workers, "gone")
    assert json.loads(cli("health", "--json").stdout) == {"working": False, "workers": []}


def test_words_that_are_no_json_are_an_unready_worker(cli, server, queue_name) -> None:
    """Health that cannot be read counts as not ready instead of crashing the command."""
    keys = Keys(queue_name)
    with connect(server.url) as client:
        client.sadd(keys.workers, "odd")
        client.set(keys.worker("odd"), "not json")
    done = cli("health", "--json")
    assert (done.returncode, json.loads(done.stdout)["workers"][0]["working"]) == (1, False)


def test_a_webhook_is_part_of_the_job(cli, stand_in, tmp_path) -> None:
    """`submit --webhook` asks for it, `status` says that it is still to be told, and a wrong URL is wrong usage."""
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    done = cli("submit", tmp_path / "a.wav", "--webhook", "https://app.example/hook", "--wait", "--json")
    job = json.loads(done.stdout)["job"]
    assert json.loads(cli("status", job, "--json").stdout)["webhook"] == "pending"
    wrong = cli("submit", tmp_path / "a.wav", "--webhook", "mailto:me")
    assert wrong.returncode != 0 and "webhook" in wrong.stdout + wrong.stderr
