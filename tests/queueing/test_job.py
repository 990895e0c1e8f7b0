"""Jobs on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueing.errors import InvalidJob
from queueing.events import Event, decode_event
from queueing.job import digest, encode_job, job_from_fields, parse_job
from tests.support.bench import make_job

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lane": "bulk", "tenant": "acme", "deadline_ms": 5, "max_attempts": 9},
        {"input": {"type": "url", "url": "https://example.org/é"}},
        {"input": {"type": "inline", "size": 3, "sha256": "a" * 64, "name": "a.wav"}},
        {"options": {"language": "de", "prompt": "日本", "timestamps": False}},
    ],
)
def test_there_and_back(fields: dict[str, Any]) -> None:
    """A job that was encoded is read back equal."""
    job = make_job(**fields)
    assert parse_job(encode_job(job)) == job


@given(st.binary(max_size=200) | JSON.map(json.dumps))
def test_any_payload(payload: bytes | str) -> None:
    """Whatever the payload, it is a job or an InvalidJob."""
    with pytest.raises(InvalidJob):
        parse_job(payload)


@given(st.dictionaries(st.sampled_from(["id", "model", "lane", "input", "options", "v", "kind", "x"]), JSON))
def test_any_fields(fields: dict[str, Any]) -> None:
    """Fields of any kind are refused as a job, never with another exception."""
    with pytest.raises(InvalidJob):
        job_from_fields(fields)


def test_values_stay_out_of_the_message() -> None:
    """A refusal names the field and not what it held."""
    with pytest.raises(InvalidJob, match="prompt") as caught:
        make = {"id": "abcdefgh", "model": "m", "input": {"type": "path", "path": "/a"}}
        job_from_fields({**make, "options": {"prompt": "secret" * 1000}})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"id": "another-id-1"}, {"deadline_ms": 7}, {"not_before_ms": 7}, {"v": 2}, {"max_attempts": 3}],
)
def test_digest_passes_over(fields: dict[str, Any]) -> None:
    """The id, moments, the wire version and defaults that are written out do not change the digest."""
    assert digest(make_job(**fields)) == digest(make_job())


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "other"},
        {"lane": "bulk"},
        {"max_attempts": 4},
        {"input": {"type": "path", "path": "/b.wav"}},
        {"input": {"type": "url", "url": "/a.wav"}},
        {"options": {"language": "de"}},
        {"options": {"temperature": 0.2}},
    ],
)
def test_digest_tells_apart(fields: dict[str, Any]) -> None:
    """Whatever changes the work changes the digest."""
    assert digest(make_job(**fields)) != digest(make_job())


@pytest.mark.parametrize(
    "options",
    [
        {"words": True},
        {"beam_size": 2},
        {"best_of": 2},
        {"seed": 1},
        {"hot_words": ["a"]},
        {"fallback": False},
    ],
)
def test_an_option_of_version_2_makes_a_job_of_version_2(options: dict[str, Any]) -> None:
    """A job bears the least version that knows its options, on the wire too, whatever it claimed."""
    job = make_job(options=options)
    assert job.v == 2 and json.loads(encode_job(job))["v"] == 2
    assert parse_job(encode_job(job)) == job
    assert make_job(options={"language": "de"}).v == 1
    assert make_job(v=7, options=options).v == 7


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 0},
        {"beam_size": 17},
        {"best_of": 0},
        {"seed": -1},
        {"hot_words": [""]},
        {"hot_words": ["a"] * 65},
        {"hot_words": ["a" * 101]},
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    """Each option of the search has bounds, and its name stands in the error."""
    fields = json.loads(encode_job(make_job())) | {"options": options}
    with pytest.raises(InvalidJob, match=next(iter(options))):
        job_from_fields(fields)


def test_digest_knows_the_kind() -> None:
    """Transcribing and translating the same input are different work."""
    fields = {"id": "abcdefgh", "model": "m", "input": {"type": "path", "path": "/a"}}
    assert digest(job_from_fields(fields)) != digest(job_from_fields({**fields, "kind": "translate"}))


@pytest.mark.parametrize("data", ["", "{", "[1]", "null", '"x"'])
def test_an_event_that_makes_no_sense(data: str) -> None:
    """Data that is no JSON object is an event without data."""
    event = decode_event(b"1-1", {b"type": b"progress", b"attempt": b"x", b"data": data.encode()})
    assert event == Event("progress", 0, {}, "1-1")
