"""Frames on the socket between the worker and the engine.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON: an object whose member ``t`` names
one of the dataclasses of :mod:`engine.protocol` and whose other members are exactly its fields. A frame that
is anything else is a :class:`WireError`: both ends come from one checkout, so it means a broken peer.
"""

from __future__ import annotations

import json
import math
import struct
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from engine import protocol
from engine.config import EngineConfig

MAX_FRAME = 8 * 1024 * 1024
"""Bytes of the longest frame that is read or written."""

HEADER = struct.Struct(">I")

Message = protocol.Command | protocol.Event | EngineConfig

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


class WireError(ValueError):
    """Bytes that are not a frame of this protocol, or a message that cannot be one."""


def encode_message(message: Message) -> bytes:
    """The frame of a message, header included.

    :raises WireError: a number that JSON has not (NaN, infinity), a text that is not Unicode, or a frame
        over :data:`MAX_FRAME`.
    """
    body = {"t": type(message).__name__, **_to_json(message)}
    try:
        payload = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as exc:
        raise WireError(f"{type(message).__name__} cannot be written as JSON") from exc
    if len(payload) > MAX_FRAME:
        raise WireError(f"{type(message).__name__} of {len(payload)} bytes is over {MAX_FRAME}")
    return HEADER.pack(len(payload)) + payload


def decode_message(payload: bytes) -> Message:
    """The message of a frame's payload, without its header.

    :raises WireError: not JSON, an unknown type, a missing, unknown or wrongly typed field.
    """
    try:
        body = json.loads(payload, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise WireError("the frame is not JSON") from exc
    if not isinstance(body, dict):
        raise WireError("the frame is not an object")
    kind = _TYPES.get(str(body.pop("t", None)))
    if kind is None:
        raise WireError("the frame names no known type")
    message: Message = _build(kind, body, kind.__name__)
    return message


class FrameDecoder:
    """Cuts a stream of bytes into payloads, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, return the payloads that are whole now.

        :raises WireError: a header that announces more than :data:`MAX_FRAME` bytes.
        """
        self._buffer += data
        payloads = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes is over {MAX_FRAME}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return payloads


def _refuse_constant(name: str) -> float:
    raise WireError(f"the frame holds {name}")


def _to_json(value: Any) -> Any:
    match value:
        case tuple() | list():
            return [_to_json(item) for item in value]
        case dict():
            return {str(key): _to_json(item) for key, item in value.items()}
        case _ if is_dataclass(value):
            return {
                name: _to_json(getattr(value, name))
                for name, _ in _hints(typing.cast("type[Any]", type(value)))
            }
        case _:
            return value


_HINTS: dict[type[Any], tuple[tuple[str, Any], ...]] = {}


def _hints(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Names and types of a dataclass's fields."""
    if kind not in _HINTS:
        hints = typing.get_type_hints(kind)
        _HINTS[kind] = tuple((f.name, hints[f.name]) for f in fields(kind))
    return _HINTS[kind]


def _build(kind: type[Any], body: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    if body.keys() != {name for name, _ in hints}:
        raise WireError(f"{where}: the fields are not those of {kind.__name__}")
    return kind(**{name: _read(hint, body[name], f"{where}.{name}") for name, hint in hints})


def _read(hint: Any, value: Any, where: str) -> Any:  # noqa: PLR0911 - one line for each kind of field
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _read(next(arg for arg in args if arg is not type(None)), value, where)
    if origin is Literal and value in args:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(args[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(args[1], item, where) for key, item in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return _build(typing.cast("type[Any]", hint), value, where)
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint in (str, int, bool) and type(value) is hint:
        return value
    raise WireError(f"{where}: a value of the wrong type")
