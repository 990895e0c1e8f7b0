"""Telling the ends of jobs: over a real server, to a real receiver."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from standardwebhooks.webhooks import Webhook

from engine.fake import FakeConfig
from queueing.client import Client
from queueing.errors import UnknownJob
from queueing.job import State
from queueing.keys import Keys
from queueing.scripts import run
from queueing.undelivered import NotGivenUp, Undelivered
from queueing.webhook import InvalidWebhook, key_of, signature, verify_webhook
from tests.support.bench import Bench
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until
from tests.worker.conftest import StartWorker
from worker.daemon import cancel_all
from worker.link import Link
from worker.webhooks import WebhookConfig, Webhooks

KEYS = Keys("main")
SECRET = "whsec_" + "c2VjcmV0" * 6
HTTP = {"schemes": ("http", "https"), "allow_private_hosts": True, "backoff_s": 0.01, "timeout_s": 5.0}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def bench(queue_redis: redis.Redis) -> Bench:
    return Bench(queue_redis)


def ended(bench: Bench, url: str, outcome: str = "done", **options: Any) -> str:
    """A job that has ended and wants it told."""
    job_id = bench.add(v=2, webhook=url, **options)
    assert bench.settle(bench.one(), outcome) == "ok"
    return job_id


def tell(redis_url: str, bench: Bench, until: Callable[[], bool], **options: Any) -> Webhooks:
    """Run the part until something holds."""

    async def act() -> Webhooks:
        link = Link(redis_url)
        keep = asyncio.create_task(link.keep())
        config = WebhookConfig(secret=SECRET, **{**HTTP, **options})
        webhooks = Webhooks(link, bench.queue, config)
        running = asyncio.create_task(webhooks.run())
        async with asyncio.timeout(30):
            while not until():
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
        await cancel_all([running, keep])
        await link.close()
        return webhooks

    return asyncio.run(act())


def hook_state(bench: Bench, job_id: str) -> str | None:
    status = bench.status(job_id)
    return status.hook_state if status is not None else None


def test_the_end_is_told_and_any_library_can_check_it(
    redis_url: str, bench: Bench, receiver: Receiver
) -> None:
    """The body holds the result, and the reference library of Standard Webhooks accepts the signature."""
    job_id = ended(bench, receiver.url + "/hook?a=b")
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent")
    (got,) = receiver.received
    assert got.path == "/hook?a=b"
    said = Webhook(SECRET).verify(got.body, got.headers)
    assert (said["type"], said["job_id"], said["result"]["text"]) == ("job.done", job_id, "hello")
    told = verify_webhook(got.body, got.headers, SECRET, now=time.time())
    assert told.result is not None and told.result.text == "hello"
    assert (told.state, told.attempt) == (State.DONE, 1)


@pytest.mark.parametrize("outcome", ["failed", "dead"])
def test_an_end_without_a_result_is_told_too(
    redis_url: str, bench: Bench, receiver: Receiver, outcome: str
) -> None:
    """Failures carry their error."""
    job_id = ended(bench, receiver.url, outcome)
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent")
    said = json.loads(receiver.received[0].body)
    assert (said["type"], said["error"]["code"]) == (f"job.{outcome}", "boom")


def test_a_cancelled_job_is_told_too(redis_url: str, bench: Bench, receiver: Receiver) -> None:
    """An end that no worker brought about is told like any other."""
    job_id = bench.add(v=2, webhook=receiver.url)
    bench.cancel(job_id)
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent")
    assert json.loads(receiver.received[0].body)["type"] == "job.cancelled"


def test_a_refusal_is_tried_again_with_the_same_id(redis_url: str, bench: Bench) -> None:
    """500 and 302 are tried again, the redirect is not followed, and the id does not change."""
    with Receiver(500, 302) as receiver:
        job_id = ended(bench, receiver.url)
        webhooks = tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent")
        assert [got.path for got in receiver.received] == ["/"] * 3
        assert len({got.headers["webhook-id"] for got in receiver.received}) == 1
    assert webhooks.counts == {"delivered": 1, "retried": 2, "given_up": 0}


def test_after_so_many_tries_it_is_given_up_and_seen(redis_url: str, bench: Bench) -> None:
    """The last refusal puts the job on the list of the undelivered, with the reason, until it is sent again."""
    with Receiver(*[503] * 3) as receiver:
        job_id = ended(bench, receiver.url)
        tell(redis_url, bench, lambda: hook_state(bench, job_id) == "dead", tries=3)
        assert len(receiver.received) == 3
        undelivered = Undelivered(bench.redis, bench.queue, server="here")
        (status,) = undelivered.latest()
        assert (status.job_id, status.hook_error) == (job_id, "it answered with status 503")
        undelivered.again(job_id)
        assert undelivered.latest() == []
        with pytest.raises(NotGivenUp):
            undelivered.again(job_id)
        tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent", tries=3)
    with pytest.raises(UnknownJob):
        undelivered.again("nobody-knows-it")


def test_gone_is_final(redis_url: str, bench: Bench) -> None:
    """A receiver that answers 410 is asked once."""
    with Receiver(410) as receiver:
        job_id = ended(bench, receiver.url)
        tell(redis_url, bench, lambda: hook_state(bench, job_id) == "dead")
        assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("http://127.0.0.1:{port}/", {"allow_private_hosts": False}, "public internet"),
        ("http://localhost:{port}/", {"allow_private_hosts": False}, "public internet"),
        ("http://[::ffff:127.0.0.1]:{port}/", {"allow_private_hosts": False}, "public internet"),
        ("http://127.0.0.1:{port}/", {"schemes": ("https",)}, "WEBHOOK_SCHEMES"),
        ("http://a:b@127.0.0.1:{port}/", {}, "malformed"),
        ("http://127.0.0.1:99999/", {}, "malformed"),
    ],
)
def test_where_a_webhook_may_not_go_it_never_connects(
    redis_url: str, bench: Bench, receiver: Receiver, url: str, options: dict[str, Any], reason: str
) -> None:
    """Private addresses, however they are written, other schemes and malformed URLs are given up unasked."""
    job_id = ended(bench, url.format(port=receiver.url.rpartition(":")[2]))
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "dead", **options)
    status = bench.status(job_id)
    assert status is not None and reason in (status.hook_error or "")
    assert receiver.received == []


def test_one_that_does_not_answer_holds_up_nobody(redis_url: str, bench: Bench, receiver: Receiver) -> None:
    """A receiver that hangs costs its own time-out; another is told meanwhile."""
    with Receiver() as hanging:
        hanging.hold.clear()
        slow = ended(bench, hanging.url)
        quick = ended(bench, receiver.url)
        tell(redis_url, bench, lambda: hook_state(bench, quick) == "sent")
        assert hook_state(bench, slow) == "pending"
        assert len(hanging.received) == 1


def test_silence_is_a_failed_try(redis_url: str, bench: Bench) -> None:
    """A receiver that never answers is tried again after the time-out."""
    with Receiver() as hanging:
        hanging.hold.clear()
        job_id = ended(bench, hanging.url)
        tell(redis_url, bench, lambda: hook_state(bench, job_id) == "dead", timeout_s=0.1, tries=2)
        assert len(hanging.received) == 2


def test_a_taken_end_is_handed_out_again_after_its_hold(bench: Bench) -> None:
    """Whoever took it and died loses it when the hold is over, and can no longer say what became of it."""
    job_id = ended(bench, "https://example.com/")
    (first,) = run(bench.redis, bench.queue.hook_take("http", 8, 1))
    assert first.job_id == job_id

    def taken_again() -> Any:
        return run(bench.redis, bench.queue.hook_take("http", 8, 60_000))

    (second,) = wait_until(taken_again)
    assert (second.tries, second.seq) == (2, first.seq + 1)
    assert run(bench.redis, bench.queue.hook_end("http", first, "sent")) == "stale"
    assert hook_state(bench, job_id) == "pending"
    assert taken_again() == ()
    assert run(bench.redis, bench.queue.hook_end("http", second, "sent")) == "ok"


def test_the_outcome_outlives_its_time_until_it_is_told(bench: Bench) -> None:
    """A result kept for a second is kept until its webhook is delivered, and no longer."""
    job_id = ended(bench, "https://example.com/", result_ttl_s=1)
    assert bench.redis.ttl(bench.keys.job(job_id)) > 6 * 86_400
    (taken,) = run(bench.redis, bench.queue.hook_take("http", 8, 1000))
    assert run(bench.redis, bench.queue.hook_end("http", taken, "sent")) == "ok"
    assert bench.redis.ttl(bench.keys.job(job_id)) <= 1


def test_a_revived_job_tells_its_next_end(redis_url: str, bench: Bench, receiver: Receiver) -> None:
    """A dead job that is tried again before its end was told tells the new end alone."""
    job_id = ended(bench, receiver.url, "dead")
    assert run(bench.redis, bench.queue.revive(job_id)) == "revived"
    assert run(bench.redis, bench.queue.hook_take("http", 8, 1000)) == ()
    assert bench.settle(bench.one(), "done") == "ok"
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent")
    assert [json.loads(got.body)["type"] for got in receiver.received] == ["job.done"]


def test_a_large_result_is_left_out(redis_url: str, bench: Bench, receiver: Receiver) -> None:
    """What is over the bound is not sent, and the body says so."""
    job_id = ended(bench, receiver.url)
    tell(redis_url, bench, lambda: hook_state(bench, job_id) == "sent", max_bytes=10)
    said = json.loads(receiver.received[0].body)
    assert said["result_omitted"] is True and "result" not in said


def test_a_worker_that_knows_no_hooks_never_gets_such_a_job(bench: Bench) -> None:
    """Its scripts would end the job without writing down that the end must be told."""
    job_id = bench.add(v=2, webhook="https://example.com/")
    taken = bench.take(wire=1)
    assert (taken.deliveries, taken.newer) == ((), (job_id,))


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "signature", "old", "secret"])
def test_whatever_is_changed_the_receiver_notices(change: str) -> None:
    """A body, id, time or signature other than that which was signed is not accepted, and neither is an old one."""
    body = b'{"type":"job.done","job_id":"x","state":"done","attempt":1,"created_ms":1,"finished_ms":2}'
    headers = {
        "Webhook-Id": "m1",
        "Webhook-Timestamp": "1000",
        "Webhook-Signature": signature(key_of(SECRET), "m1", 1000, body),
    }
    assert verify_webhook(body, headers, SECRET, now=1100.0).job_id == "x"
    now, secret = 1100.0, SECRET
    match change:
        case "body":
            body += b" "
        case "id":
            headers["Webhook-Id"] = "m2"
        case "timestamp":
            headers["Webhook-Timestamp"] = "1001"
        case "signature":
            headers["Webhook-Signature"] = "v1,AAAA v2,\xff"
        case "old":
            now = 1301.0
        case "secret":
            secret = "whsec_" + "b3RoZXI0" * 6
    with pytest.raises(InvalidWebhook):
        verify_webhook(body, headers, secret, now=now)


def test_a_death_between_the_end_and_its_telling_loses_nothing(
    start_worker: StartWorker, client: Client, clip: Path, queue_redis: redis.Redis
) -> None:
    """The worker that ended the job is killed while it tells it; the next worker tells it, with the same id."""
    with Receiver() as receiver:
        receiver.hold.clear()
        settings = {
            "webhook_secret": SECRET,
            "webhook_schemes": "http",
            "webhook_private_hosts": "true",
            "webhook_timeout_s": 0.5,
            "webhook_backoff_s": 0.1,
        }
        first = start_worker(**settings)
        job = client.submit(clip, webhook=receiver.url)
        wait_until(lambda: receiver.received, "first try")
        first.signal(signal.SIGKILL)
        first.wait()
        assert client.status(job).hook_state == "pending"
        receiver.hold.set()
        # The hold of the dead worker's try, as if it were over.
        queue_redis.zadd(KEYS.hooks("http"), {str(job): 1})
        start_worker("w2", fake=FakeConfig(), **settings)
        wait_until(lambda: client.status(job).hook_state == "sent", "told")
        assert len({got.headers["webhook-id"] for got in receiver.received}) == 1
        assert len(receiver.received) >= 2
