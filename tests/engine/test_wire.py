"""Frames between worker and engine."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import protocol, wire
from engine.config import EngineConfig
from engine.protocol import ChunkDone, ChunkRequest, DecodeOptions, Dispatch, Partial, Sample, StepDone

texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
messages = st.one_of(
    st.builds(Partial, chunk=texts, job=texts, text=texts),
    st.builds(Sample, *[st.integers(0, 2**60)] * 4),
    st.builds(
        Dispatch,
        batch=st.integers(0, 2**31),
        chunks=st.lists(
            st.builds(
                ChunkRequest,
                id=texts,
                job=texts,
                model=texts,
                path=texts,
                offset=st.integers(0, 2**40),
                samples=st.integers(1, 480_000),
                options=st.builds(
                    DecodeOptions,
                    task=st.sampled_from(["transcribe", "translate"]),
                    language=st.none() | texts,
                    prompt=st.none() | texts,
                    temperatures=st.lists(numbers, max_size=6).map(tuple),
                    timestamps=st.booleans(),
                    max_tokens=st.none() | st.integers(1, 224),
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(EngineConfig, aliases=st.dictionaries(texts, texts), cache_dir=st.none() | texts),
)


def payload_of(frame: bytes) -> bytes:
    return frame[wire.HEADER.size :]


@given(messages)
def test_a_message_survives_the_wire(message: Any) -> None:
    """What is decoded equals what was encoded, type and all."""
    assert wire.decode_message(payload_of(wire.encode_message(message))) == message


def test_every_message_of_the_protocol_is_known() -> None:
    """The codec knows every command and event, and no more than these and the configuration."""
    named = {kind.__name__ for kind in (*get_args(protocol.Command), *get_args(protocol.Event), EngineConfig)}
    assert set(wire._TYPES) == named


@given(st.lists(messages, max_size=4), st.integers(1, 50))
def test_frames_are_cut_whatever_the_pieces(sent: list[Any], size: int) -> None:
    """A stream that arrives in pieces of any size gives the same messages."""
    stream = b"".join(map(wire.encode_message, sent))
    decoder = wire.FrameDecoder()
    got = [
        wire.decode_message(payload)
        for start in range(0, len(stream), size)
        for payload in decoder.feed(stream[start : start + size])
    ]
    assert got == sent


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_cannot_be_sent(value: float) -> None:
    """NaN and infinity are refused by the sender: they would make every threshold behind them inert."""
    done = ChunkDone("c", "j", "", (), "en", value, 0.0, 0.0, 0.0, 0, 8.0, False, 32)
    with pytest.raises(wire.WireError):
        wire.encode_message(done)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"t":"Nothing"}',
        b'{"t":"Partial","chunk":"c","job":"j"}',
        b'{"t":"Partial","chunk":"c","job":"j","text":"x","more":1}',
        b'{"t":"Partial","chunk":"c","job":"j","text":3}',
        b'{"t":"Sample","active":1.5,"cache":0,"peak":0,"footprint":0}',
        b'{"t":"Sample","active":true,"cache":0,"peak":0,"footprint":0}',
        b'{"t":"BatchDone","batch":1,"seconds":NaN}',
        b'{"t":"Cancel","chunks":"c"}',
        b'{"t":"Partial","chunk":"c","job":"j","text":null}',
        b"\xff\xfe",
    ],
)
def test_a_frame_that_is_no_message_is_refused(body: bytes) -> None:
    """Unknown types, missing, unknown and wrongly typed fields are errors."""
    with pytest.raises(wire.WireError):
        wire.decode_message(body)


def test_a_task_that_does_not_exist_is_refused() -> None:
    """A field with a closed set of values takes no other."""
    request = ChunkRequest("c", "j", "m", "/p", 0, 1)
    body = json.loads(payload_of(wire.encode_message(Dispatch(1, (request,)))))
    body["chunks"][0]["options"]["task"] = "summarize"
    with pytest.raises(wire.WireError):
        wire.decode_message(json.dumps(body).encode())


def test_a_frame_is_bounded() -> None:
    """A header that announces more than the bound is refused before anything is buffered for it."""
    with pytest.raises(wire.WireError):
        wire.FrameDecoder().feed(wire.HEADER.pack(wire.MAX_FRAME + 1))
    with pytest.raises(wire.WireError):
        wire.encode_message(Partial("c", "j", "x" * wire.MAX_FRAME))


def test_fields_with_defaults_are_sent_too() -> None:
    """A frame holds every field, so that a missing one is always a fault."""
    done = StepDone("decode", 1, 0.1, (), (), 8.0, Sample(0, 0, 0, 0))
    assert b'"steps":1' in wire.encode_message(done)
