"""What those read who got something wrong: one sentence that says what would be right, and never a pattern."""

from __future__ import annotations

import io
from typing import Any

import pytest

from queueing.client import Client
from queueing.errors import InvalidJob
from queueing.job import IN_WORDS, JOB_ID, LANGUAGE, NAME, WEBHOOK_URL

SERVERLESS = "redis://127.0.0.1:1/0"
"""Nobody listens there: what is refused is refused before anybody is asked."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"language": "english"}, f"options.language: {IN_WORDS[LANGUAGE]}"),
        ({"tenant": "Ann & Bob"}, f"tenant: {IN_WORDS[NAME]}"),
        ({"model": "/etc/passwd"}, f"model: {IN_WORDS[NAME]}"),
        ({"job_id": "short"}, f"id: {IN_WORDS[JOB_ID]}"),
        ({"webhook": "example.com/hook"}, f"webhook: {IN_WORDS[WEBHOOK_URL]}"),
        ({"webhook": "https://example.com/a b"}, f"webhook: {IN_WORDS[WEBHOOK_URL]}"),
        ({"lane": "urgent"}, "lane: Input should be 'interactive', 'normal' or 'bulk'"),
        ({"temperature": 3}, "options.temperature: Input should be less than or equal to 1"),
        ({"hot_words": "Anna"}, "options.hot_words: Input should be a valid tuple"),
        ({"kind": "transcripe"}, "no such kind of job; this version knows transcribe, translate"),
        (
            {"input": io.BytesIO(b"RIFF")},
            "input: must be a path, an http(s) URL or bytes; of an open file, hand over what its read() returns",
        ),
        ({"input": "ftp://example.com/a.wav"}, "input: only http:// and https:// URLs can be fetched"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_told_in_words(wrong: dict[str, Any], message: str) -> None:
    """The field is named, and what it may hold."""
    with Client(SERVERLESS, patience_s=0) as client, pytest.raises(InvalidJob) as caught:
        client.submit(**{"input": "/a.wav", **wrong})
    assert str(caught.value) == message


def test_every_pattern_is_told_in_words() -> None:
    """No message of ours shows a regular expression."""
    patterns = {NAME, JOB_ID, LANGUAGE, WEBHOOK_URL}
    assert IN_WORDS.keys() == patterns
    assert not any(sign in words for words in IN_WORDS.values() for sign in "^$[{")


@pytest.mark.parametrize("name", ["my queue", "", "a\n", "a" * 65, ".a", 5])
def test_a_client_without_a_name_is_refused(name: Any) -> None:
    """A queue and a model of a client are names, as those of a job are."""
    for option in ("queue", "model"):
        with pytest.raises(InvalidJob) as caught:
            Client(SERVERLESS, **{option: name})
        assert str(caught.value) == f"{option}: {IN_WORDS[NAME]}"
