"""The contract as others see it: its schemas, and what becomes of arbitrary input."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from queueing.errors import InvalidJob
from queueing.events import Event, decode_event
from queueing.job import WIRE_VERSION, Job, Result, TranscribeJob, TranslateJob, encode_job, parse_job
from queueing.schemas import FOLDER, rendered, schemas
from queueing.webhook import InvalidWebhook, key_of, signature, verify_webhook
from tests.support.bench import make_job

SECRET = "whsec_" + "c2VjcmV0" * 6
CHECK = {
    name: jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for name, schema in schemas().items()
}
CALM = settings(max_examples=60, deadline=None)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*TranscribeJob.model_fields, "kind", "options", "input"})
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._@-]{0,20}\Z")
inputs = st.one_of(
    st.builds(lambda path: {"type": "path", "path": path}, st.text(min_size=1, max_size=40)),
    st.builds(lambda rest: {"type": "url", "url": "https://" + rest}, st.text(max_size=40)),
    st.just({"type": "inline", "size": 3, "sha256": "a" * 64}),
)
jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["transcribe", "translate"]),
        "id": st.from_regex(r"\A[A-Za-z0-9_-]{8,64}\Z"),
        "model": names,
        "input": inputs,
    },
    optional={
        "v": st.integers(1, 5),
        "lane": st.sampled_from(["interactive", "normal", "bulk"]),
        "tenant": names,
        "max_attempts": st.integers(1, 100),
        "deadline_ms": st.integers(0, 2**53) | st.none(),
        "result_ttl_s": st.integers(1, 31_536_000),
        "webhook": st.just("https://h/x?y=z") | st.none(),
        "options": st.fixed_dictionaries(
            {},
            optional={
                "language": st.sampled_from(["en", "yue", None]),
                "prompt": st.text(max_size=30) | st.none(),
                "timestamps": st.booleans(),
                "temperature": st.floats(0, 1),
                "max_tokens": st.integers(1, 448) | st.none(),
            },
        ),
    },
)


def test_the_schemas_are_current() -> None:
    """The files in queueing/schema are what `python -m queueing.schemas` writes now."""
    folder = FOLDER / f"v{WIRE_VERSION}"
    assert {path.stem: path.read_text("utf-8") for path in folder.glob("*.json")} == {
        name: rendered(schema) for name, schema in schemas().items()
    }


@pytest.mark.parametrize("name", sorted(CHECK))
def test_each_schema_is_one(name: str) -> None:
    """Each is a valid schema of its dialect."""
    jsonschema.Draft202012Validator.check_schema(schemas()[name])


@CALM
@given(jobs)
def test_a_job_means_the_same_to_schema_and_worker(fields: dict[str, Any]) -> None:
    """What is made by the rules passes the schema and the worker, also after it was written again."""
    CHECK["job"].validate(fields)
    job = parse_job(json.dumps(fields))
    again = encode_job(job)
    assert parse_job(again) == job
    CHECK["job"].validate(json.loads(again))


@CALM
@given(jobs, st.sampled_from(FIELDS) | st.text(max_size=8), json_values)
def test_what_the_worker_takes_the_schema_takes(fields: dict[str, Any], name: str, value: Any) -> None:
    """With one field replaced by anything: a job that the worker takes passes the schema as the worker reads it."""
    changed = {**fields, name: value}
    try:
        wire = json.dumps(changed, allow_nan=False)
    except ValueError:
        return
    try:
        parse_job(wire)
    except InvalidJob:
        return
    # As it is read: pydantic also takes a number that comes as text, {"v": "1"}.
    plain = json.loads(TypeAdapter(Job).dump_json(parse_job(wire)))
    CHECK["job"].validate(plain)


@CALM
@given(st.binary(max_size=200) | st.text(max_size=200) | json_values.map(lambda value: json.dumps(value)))
def test_whatever_comes_is_a_job_or_invalid(payload: Any) -> None:
    """No payload makes the parser fail in another way, or say what stood in it."""
    try:
        parse_job(payload)
    except InvalidJob as exc:
        assert len(str(exc)) < 2000


@CALM
@given(st.sampled_from(FIELDS), st.text(min_size=8, max_size=30, alphabet="qxzjvk"))
def test_a_refusal_quotes_no_value(field: str, value: str) -> None:
    """A wrong value is named by its field and not repeated: it may be a secret."""
    fields = json.loads(encode_job(make_job()))
    fields[field] = {"deeply": [value]}
    with pytest.raises(InvalidJob) as caught:
        parse_job(json.dumps(fields))
    assert value not in str(caught.value)


@CALM
@given(
    st.dictionaries(
        st.sampled_from([b"type", b"attempt", b"data", b"x"]),
        st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode()),
    )
)
def test_whatever_an_event_holds_it_is_read(fields: dict[bytes, bytes]) -> None:
    """An event is never an exception for whoever follows a job."""
    assert isinstance(decode_event(b"1-1", fields), Event)


@CALM
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=5), st.binary(max_size=60))
def test_whatever_a_webhook_receiver_is_sent_it_is_refused(headers: dict[str, str], body: bytes) -> None:
    """Without the secret there is no request that a receiver takes, nor one that makes it fail otherwise."""
    with pytest.raises(InvalidWebhook):
        verify_webhook(body, headers, SECRET, now=0.0)
    stamp = {"webhook-id": "m", "webhook-timestamp": "0"}
    signed = signature(key_of(SECRET), "m", 0, body)
    with pytest.raises(InvalidWebhook):
        verify_webhook(body, {**headers, **stamp, "webhook-signature": signed}, SECRET, now=0.0)


def test_results_that_are_written_pass_their_schema() -> None:
    """What a worker writes is what the schema of results says."""
    result = Result(text="a", segments=({"start": 0, "end": 1, "text": "a"},), language=None)  # type: ignore[arg-type]
    CHECK["result"].validate(json.loads(result.model_dump_json()))


def test_kinds_are_told_apart() -> None:
    """The kind decides which model reads the job."""
    assert isinstance(parse_job(encode_job(make_job())), TranscribeJob)
    fields = {**json.loads(encode_job(make_job())), "kind": "translate"}
    assert isinstance(parse_job(json.dumps(fields)), TranslateJob)
