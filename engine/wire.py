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
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

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


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _to_json(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (tuple, list):
        return [_to_json(item) for item in value]
    if kind is dict:
        return {str(key): _to_json(item) for key, item in value.items()}
    if is_dataclass(kind):
        return {name: _to_json(getattr(value, name)) for name, _ in _hints(kind)}
    return value


@cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Names and types of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    return tuple((f.name, hints[f.name]) for f in fields(kind))


class _Misfit(Exception):
    """A value that is not what a field holds; ``where`` grows on the way out."""

    def __init__(self, where: str, what: str = "a value of the wrong type") -> None:
        super().__init__(what)
        self.where = where
        self.what = what


Reader = Callable[[Any], Any]


def _build(kind: Any, body: dict[str, Any], where: str) -> Any:
    try:
        return _reader(kind)(body)
    except _Misfit as exc:
        raise WireError(f"{where}{exc.where}: {exc.what}") from None


@cache
def _reader(hint: Any) -> Reader:  # noqa: PLR0911 - one for each kind of field
    """What turns a JSON value into one of that type, or raises _Misfit. Types are looked at once, not at each frame."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        optional = type(None) in args
        inner = _reader(next(arg for arg in args if arg is not type(None)))
        return lambda value: None if value is None and optional else inner(value)
    if origin is Literal:
        return lambda value: value if value in args else _misfit()
    if origin is tuple:
        each = _reader(args[0])
        return lambda value: tuple([each(item) for item in value]) if isinstance(value, list) else _misfit()
    if origin is dict:
        member = _reader(args[1])
        return lambda value: (
            {key: member(item) for key, item in value.items()} if isinstance(value, dict) else _misfit()
        )
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    if hint is float:
        return _read_float
    if hint in (str, int, bool):
        return lambda value: value if type(value) is hint else _misfit()
    return lambda value: _misfit()


def _dataclass_reader(kind: Any) -> Reader:
    readers = [(name, _reader(hint)) for name, hint in _hints(kind)]
    names = {name for name, _ in readers}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("")
        if value.keys() != names:
            raise _Misfit("", f"the fields are not those of {kind.__name__}")
        read_fields = {}
        for name, reader in readers:
            try:
                read_fields[name] = reader(value[name])
            except _Misfit as exc:
                raise _Misfit(f".{name}{exc.where}", exc.what) from None
        return kind(**read_fields)

    return read


def _read_float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _Misfit("")
    return float(value)


def _misfit() -> NoReturn:
    raise _Misfit("")
