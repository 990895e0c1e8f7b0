"""One run: start everything, submit and strike at the same time, wait until all is quiet, stop everything, count."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from ops import recordings, stack
from ops.bench.faults import plan, report
from ops.bench.faults.fleet import MODEL, Manner, Place
from ops.bench.faults.observer import Observer
from ops.bench.faults.play import Player
from ops.bench.faults.proxy import Switchboard
from ops.bench.faults.report import Report
from ops.bench.faults.server import Server
from ops.exits import Trouble
from queueing.connect import connect
from queueing.job import PathInput, TranscribeJob, new_job_id
from queueing.keys import Keys
from queueing.protocol import Admission, Queue
from queueing.scripts import run as run_call

CLIPS = 12
CLIP_S = 1.0
READY_S = 90.0
SUBMIT_S = 30.0
"""Seconds for which a submission is tried while the server is away."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run."""

    seed: int = 1
    jobs: int = 2000
    faults: int = 130
    seconds: float = 80.0
    """For which jobs are submitted and faults strike."""
    workers: int = 3
    quiet_s: float = 20.0
    """Seconds without any job ending after which, with every worker well, those that are open count as lost."""
    manner: Manner = field(default_factory=lambda: Manner(lease_s=1.0))


def run(order: Order, tell: Callable[[str], None] = lambda sentence: None) -> Report:
    """Run it. Raises Trouble where the workers do not come up or the server cannot be read at the end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="decibatch-faults-") as name, ExitStack() as lives:
        folder = Path(name)
        clips = cut_clips(folder)
        server = lives.enter_context(Server(folder / "redis"))
        board = lives.enter_context(Switchboard())
        observer = Observer(server.url, Keys(stack.QUEUE), MODEL)
        lives.callback(observer.stop)
        places = [
            _place(number, board, server, folder, order.manner) for number in range(1, order.workers + 1)
        ]
        for place in places:
            lives.callback(place.stop)
            place.start()
        wait_until_ready(places, observer)
        tell(f"{len(places)} workers are ready; seed {order.seed}")
        observer.start()
        player = Player(places, server, observer, tell)
        script = plan.script(
            order.seed,
            jobs=order.jobs,
            faults=order.faults,
            seconds=order.seconds,
            workers=order.workers,
            lease_s=order.manner.lease_s,
            clips=len(clips),
        )
        feed = Feed(script.submissions, clips, server.url, observer, lambda: player.behind_s)
        with submitting(feed) as submitted:
            player.play(script.faults, time.monotonic())
            submitted()
        tell(f"{len(player.struck)} faults have struck; waiting for {observer.open} jobs")
        # An engine that was killed often is started again after ever longer pauses.
        wait_until_ready(places, observer, tend=player.tend, unless=lambda: not observer.open)
        wait_until_quiet(observer, player, order.quiet_s)
        for place in places:
            place.stop()
        return count(order, observer, player, places, server, began=began)


def _place(number: int, board: Switchboard, server: Server, folder: Path, manner: Manner) -> Place:
    line = board.line(server.port)
    return Place(number, line, server.url_through(line.port), folder, manner)


def cut_clips(folder: Path) -> list[Path]:
    """Short pieces of speech, all different."""
    import soundfile

    source = recordings.folder() / "two_cities.wav"
    rate = soundfile.info(source).samplerate
    clips = []
    for number in range(CLIPS):
        start = round((1.5 + 2.5 * number) * rate)
        samples, _ = soundfile.read(source, start=start, stop=start + round(CLIP_S * rate), dtype="int16")
        clips.append(folder / f"clip-{number}.wav")
        soundfile.write(clips[-1], samples, rate, subtype="PCM_16")
    return clips


def wait_until_ready(
    places: list[Place],
    observer: Observer,
    *,
    tend: Callable[[], None] = lambda: None,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Every worker says that it is ready, or nobody need be any more. Raises Trouble after 90 s."""
    until = time.monotonic() + READY_S
    pause = threading.Event()
    while not (unless() or all(place.is_ready(observer.health) for place in places)):
        tend()
        if time.monotonic() > until:
            said = " | ".join(f"{place.name}: {stack.last_lines(place.log)}" for place in places)
            raise Trouble(f"Not every worker became ready within {READY_S:.0f} s: {said}")
        pause.wait(LOOK_S)


def wait_until_quiet(observer: Observer, player: Player, quiet_s: float) -> None:
    """Nothing is open any more, or nothing has ended for so many seconds."""
    began = time.monotonic()
    pause = threading.Event()
    while observer.open and time.monotonic() - max(began, observer.last_end) < quiet_s:
        player.tend()
        pause.wait(LOOK_S)


@dataclass(frozen=True, slots=True)
class Feed:
    """What is submitted, and how."""

    submissions: tuple[plan.Submission, ...]
    clips: list[Path]
    url: str
    observer: Observer
    behind_s: Callable[[], float]


@contextmanager
def submitting(feed: Feed) -> Iterator[Callable[[], None]]:
    """Submit beside the block; what it gives waits until all are submitted. Raises Trouble there."""
    stop = threading.Event()
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            submit_all(feed, stop)
        except Exception as exc:
            trouble.append(exc)

    thread = threading.Thread(target=work, name="submit", daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        if trouble:
            raise Trouble(f"Jobs could not be submitted: {trouble[0]}") from trouble[0]

    try:
        yield wait
    finally:
        stop.set()
        thread.join(SUBMIT_S)


def submit_all(feed: Feed, stop: threading.Event) -> None:
    """Each at its time, straight to the server."""
    began = time.monotonic()
    with connect(feed.url) as redis:
        for one in feed.submissions:
            while (left := began + one.at_s + feed.behind_s() - time.monotonic()) > 0:
                if stop.wait(min(left, LOOK_S)):
                    return
            job = TranscribeJob(
                id=new_job_id(),
                model=MODEL,
                lane=one.lane,
                tenant=one.tenant,
                input=PathInput(path=str(feed.clips[one.clip])),
            )
            submit(redis, job, stop)
            feed.observer.expect(job.id, one.clip)


def submit(redis: Any, job: TranscribeJob, stop: threading.Event) -> None:
    """Under the same id again where the answer did not come. Raises Trouble, RedisError."""
    call = Queue(Keys(stack.QUEUE)).submit(job, admission=Admission())
    until = time.monotonic() + SUBMIT_S
    while True:
        try:
            answer = run_call(redis, call)
            break
        except (RedisError, OSError):
            if time.monotonic() > until or stop.wait(LOOK_S):
                raise
    if answer.verdict not in ("ok", "exists"):
        raise Trouble(f"a job was answered with {answer.verdict}")


def count(
    order: Order, observer: Observer, player: Player, places: list[Place], server: Server, *, began: float
) -> Report:
    """The last look, with all workers gone, and the report."""
    try:
        observer.look_at_everything()
        ends, pending = observer.counted_ends(), observer.pending_left()
    except (RedisError, OSError) as exc:
        raise Trouble(f"The server cannot be read at the end: {exc}") from exc
    observer.stop()
    jobs = observer.jobs
    seen = list(jobs.values())
    seconds = time.monotonic() - began
    return Report(
        submitted=len(seen),
        **report.count_outcomes(seen),
        lost=report.lost(seen),
        duplicated=report.duplicated(seen, ends),
        mixed_up=report.mixed_up(seen),
        executed_again=report.executed_again(path for place in places for path in place.step_logs),
        faults=len(player.struck),
        faults_by_kind=dict(Counter(one.fault.kind.value for one in player.struck)),
        missed=len(player.missed),
        recovery_s=report.percentiles(report.recoveries(player.struck, jobs)),
        forgotten=sum(one.forgotten for one in seen),
        pending_left=pending,
        worker_exits=[status for place in places for status in place.deaths],
        seconds=round(seconds, 1),
        seed=order.seed,
        jobs_per_s=round(len(seen) / seconds, 1),
        workers=order.workers,
        lease_s=order.manner.lease_s,
        server=server.version,
    )
