"""Jobs of RQ, as a worker of RQ sees them: taken, started, kept alive and finished by RQ's own code.

RQ has no fence: a worker that was thought dead and comes back overwrites what a sweep or another worker has written
since. Here each final write is a compare-and-set. A pipeline watches the hash of the job, goes on only while that
is still in the enqueueing that was taken (``status`` and ``enqueued_at``), and Redis refuses it whole where
somebody changed the job meanwhile. The writes themselves are RQ's.

What a job names is never imported: no function, no callback. RQ's own webhooks are not sent.
"""

from __future__ import annotations

import logging
from typing import Any

import redis
from redis.exceptions import WatchError
from rq import Queue, worker_registration
from rq.exceptions import DequeueTimeout, DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from rq.serializers import DefaultSerializer, JSONSerializer
from rq.utils import as_text, now, utcformat
from rq.worker import BaseWorker

log = logging.getLogger("decibatch.rq")

# RQ logs arguments and results of jobs.
logging.getLogger("rq").setLevel(logging.WARNING)

OPEN = ("queued", "started")


class Moved(Exception):
    """The job is no longer in the enqueueing that was taken: deleted, cancelled, swept, ended or enqueued anew."""


class Unreadable(Exception):
    """The data of the job are in no serialization that is allowed."""


class _Worker(BaseWorker):  # type: ignore[misc]  # rq is not followed by the type checker
    def procline(self, message: str) -> None:
        """RQ would rename this process."""

    def execute_job(self, job: Job, queue: Queue) -> None:
        raise NotImplementedError


class Fence(redis.Redis):
    """A connection whose pipelines write to one job of RQ only while it is as ``at`` says.

    ``reading``: RQ reads within the transaction before it writes, and opens it itself.
    """

    def __init__(self, pool: Any, job: Job, at: str, *, reading: bool = False) -> None:
        super().__init__(connection_pool=pool)
        self.job = job
        self.at = at
        self.reading = reading
        self.last: _FencedPipeline | None = None

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """RQ asks for one where its writes begin. Raises Moved."""
        self.last = _FencedPipeline(self)
        self.last.watch()
        if not self.reading:
            self.last.multi()
        return self.last


class _FencedPipeline(redis.client.Pipeline):
    def __init__(self, fence: Fence) -> None:
        super().__init__(fence.connection_pool, fence.response_callbacks, True, None)
        self._fence = fence
        self.written = False

    def watch(self, *names: Any) -> Any:
        """Each time anew: RQ starts over where something else that it watches has changed."""
        fence = self._fence
        answer = super().watch(fence.job.key, *names)  # type: ignore[no-untyped-call]
        status, at = self.hmget(fence.job.key, "status", "enqueued_at")
        if status is None or as_text(status) not in OPEN or (as_text(at) if at else "") != fence.at:
            self.reset()
            raise Moved
        return answer

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        answer = super().execute(raise_on_error)
        self.written = True
        return answer


class RqJobs:
    """The queues of RQ that a worker serves. Not for use by several threads.

    ``redis`` must not decode replies. ``pickle_allowed`` lets jobs come as pickles: loading one runs whatever code
    its author chose.
    """

    def __init__(
        self, connection: redis.Redis, queues: tuple[str, ...], *, name: str, pickle_allowed: bool
    ) -> None:
        self._redis = connection
        timeout = connection.connection_pool.connection_kwargs.get("socket_timeout")
        self.queues = [Queue(queue, connection=connection, serializer=JSONSerializer) for queue in queues]
        self.worker = _Worker(
            self.queues,
            name=name,
            connection=connection,
            serializer=JSONSerializer,
            log_job_description=False,
        )
        # RQ raises it for the sake of blocking reads, which are not done here.
        connection.connection_pool.connection_kwargs["socket_timeout"] = timeout
        self._pickle_allowed = pickle_allowed

    def begin(self) -> None:
        """Be seen in ``rq info``."""
        self.worker.register_birth()

    def beat(self) -> None:
        """Go on being seen, and forget workers of RQ that are gone."""
        self.worker.heartbeat()
        for queue in self.queues:
            worker_registration.clean_worker_registry(queue)

    def end(self) -> None:
        self.worker.register_death()

    # --- taking -----------------------------------------------------------------------------------

    def dequeue(self) -> Job | None:
        """The next job, queues in their order; it then stands in the queue's intermediate list until it is started."""
        for queue in self.queues:
            try:
                # One queue a call: with several RQ pops without an intermediate list, and a death loses the job.
                found = Queue.dequeue_any([queue], None, connection=self._redis, serializer=JSONSerializer)
            except DequeueTimeout:
                continue
            if found is not None:
                job: Job = found[0]
                return job
        return None

    def stuck(self) -> list[tuple[Queue, str]]:
        """Jobs that somebody took and did not start, as (queue, id)."""
        found = []
        for queue in self.queues:
            for raw in self._redis.lrange(queue.intermediate_queue_key, 0, -1):
                found.append((queue, as_text(raw)))
        return found

    def unstick(self, queue: Queue, job_id: str) -> None:
        """Take a job out of the intermediate list; nobody is to start it any more."""
        self._redis.lrem(queue.intermediate_queue_key, 1, job_id)

    def put_back(self, job: Job) -> None:
        """To the head of its queue."""
        queue = self.queue_of(job)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.lrem(queue.intermediate_queue_key, 1, job.id)
            pipe.lpush(queue.key, job.id)
            pipe.execute()

    def fetch(self, job_id: str, *, pickled: bool = False) -> Job | None:
        serializer = DefaultSerializer if pickled else JSONSerializer
        try:
            job: Job = Job.fetch(job_id, connection=self._redis, serializer=serializer)
        except NoSuchJobError:
            return None
        return job

    def state(self, job_id: str) -> tuple[str, str]:
        """(status, enqueued_at) as they stand; two empty strings for no such job."""
        status, at = self._redis.hmget(Job.key_for(job_id), "status", "enqueued_at")
        return (as_text(status) if status else "", as_text(at) if at else "")

    def readable(self, job: Job) -> tuple[Job, bool]:
        """The job with its data read, and whether they were a pickle. Raises Unreadable."""
        try:
            job._deserialize_data()
            return job, False
        except DeserializationError as exc:
            if not self._pickle_allowed:
                raise Unreadable(
                    "the job is not JSON; enqueue it on Queue(..., serializer=JSONSerializer), or set "
                    "DECIBATCH_RQ_PICKLE where everybody who can write to this Redis is trusted"
                ) from exc
        again = self.fetch(job.id, pickled=True)
        if again is None:
            raise Moved
        try:
            again._deserialize_data()
        except DeserializationError as exc:
            raise Unreadable("the job is neither JSON nor a pickle") from exc
        return again, True

    @staticmethod
    def leave_unread(job: Job) -> None:
        """Let RQ's code pass over data that cannot be read; what is stored stays as it is."""
        job._func_name, job._instance, job._args, job._kwargs = "", None, (), {}

    def queue_of(self, job: Job) -> Queue:
        return Queue(job.origin, connection=self._redis, serializer=job.serializer)

    # --- while it runs ----------------------------------------------------------------------------

    def start(self, job: Job, at: str) -> Execution:
        """Mark the job as started, or go on with the start that a death interrupted. Raises Moved."""
        self.worker.connection = Fence(self._redis.connection_pool, job, at)
        try:
            executions = self._executions(job)
            execution = executions[-1] if executions else self.worker.prepare_execution(job)
            self.worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
        except WatchError as exc:
            raise Moved from exc
        finally:
            self.worker.connection = self._redis
        return execution

    def keep(self, job: Job) -> None:
        """Tell RQ that the job still runs, so that nobody sweeps it away."""
        for execution in self._executions(job):
            self.worker.maintain_heartbeats(job, execution)

    def note(self, job: Job, progress: dict[str, Any]) -> None:
        """Show progress in ``job.meta["decibatch"]``, beside whatever else stands there."""
        with self._redis.pipeline(transaction=True) as pipe:
            try:
                pipe.watch(job.key)  # type: ignore[no-untyped-call]
                raw = pipe.hget(job.key, "meta")
                if not pipe.exists(job.key):
                    return
                meta = job.serializer.loads(raw) if raw else {}
                if not isinstance(meta, dict) or meta.get("decibatch") == progress:
                    return
                pipe.multi()
                pipe.hset(job.key, "meta", job.serializer.dumps({**meta, "decibatch": progress}))
                pipe.execute()
            except WatchError:
                # Somebody else wrote to the job: the next look will do.
                return

    # --- ending -----------------------------------------------------------------------------------

    def succeed(self, job: Job, at: str, value: Any) -> None:
        """Finish with a result. Raises Moved."""
        execution = self._execution(job, at)
        job.ended_at = now()
        job._result = value
        job._status = JobStatus.FINISHED
        queue = self.queue_of(job)
        registry = StartedJobRegistry(queue=queue, serializer=job.serializer)
        self.worker.connection = Fence(self._redis.connection_pool, job, at, reading=True)
        try:
            self.worker.handle_job_success(
                job=job, queue=queue, started_job_registry=registry, execution=execution
            )
        finally:
            self.worker.connection = self._redis

    def fail(self, job: Job, at: str, why: str) -> None:
        """Fail, or let RQ enqueue the job again where it has retries left. Raises Moved."""
        execution = self._execution(job, at)
        job.ended_at = now()
        # They would be sent to any address that the job names.
        job.webhooks = []
        fence = Fence(self._redis.connection_pool, job, at)
        set_status = job.set_status
        # RQ writes "scheduled" outside of its transaction.
        job.set_status = lambda status, pipeline=None: set_status(status, pipeline or fence.last)
        self.worker.connection = fence
        try:
            self.worker.handle_job_failure(
                job=job, queue=self.queue_of(job), exc_string=why, execution=execution
            )
        finally:
            self.worker.connection = self._redis
            del job.set_status
        if fence.last is None or not fence.last.written:
            # RQ logs a transaction that was refused, and goes on.
            raise Moved

    def cancel(self, job: Job, at: str) -> None:
        """Mark as cancelled. Raises Moved."""
        executions = self._executions(job)
        with Fence(self._redis.connection_pool, job, at).pipeline() as pipe:
            try:
                job.cancel(pipeline=pipe)
                for execution in executions:
                    execution.delete(job=job, pipeline=pipe)
                pipe.execute()
                return
            except WatchError as exc:
                raise Moved from exc
            except InvalidJobOperation:
                pipe.reset()
        # RQ cancels no rate-limited job within a transaction of somebody else's.
        self.fail(job, at, "cancelled: the job was cancelled")

    def _execution(self, job: Job, at: str) -> Execution:
        executions = self._executions(job)
        if executions and job.started_at is not None:
            newest: Execution = executions[-1]
            return newest
        # Ended before its start was written, or its executions have expired.
        return self.start(job, at)

    def _executions(self, job: Job) -> list[Execution]:
        """Oldest first; those whose record has expired are left out, over which RQ itself stumbles."""
        found = []
        for execution_id in job.execution_registry.get_execution_ids():
            try:
                found.append(Execution.fetch(id=execution_id, job_id=job.id, connection=self._redis))
            except ValueError:
                continue
        return found


def moment_of(job: Job) -> str:
    """Which enqueueing of the job this is: RQ writes the moment at each of them."""
    return utcformat(job.enqueued_at) if job.enqueued_at else ""
