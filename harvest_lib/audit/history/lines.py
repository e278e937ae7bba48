"""One event is one line of JSON. The fields it must have are checked, down to their types; others are ignored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from math import isfinite
from sys import intern
from typing import Any, NamedTuple

from harvest_lib.audit.history.events import (
    KINDS,
    Event,
    Poll,
    PolledRecord,
    ReadPosition,
    RecreatedTopic,
    Write,
    WrittenRecord,
)

_Read = Callable[[Any], Any]
"""Takes a value of JSON, returns that of the field, raises ValueError."""


def to_line(event: Event) -> str:
    """Return the event as a line, with its end."""
    return json.dumps(to_document(event), separators=(",", ":"), ensure_ascii=False) + "\n"


def to_document(event: Event) -> dict[str, Any]:
    """Return the event as values that `json.dumps` takes."""
    document: dict[str, Any] = {"kind": event.kind}
    for name in _NAMES[type(event)]:
        value = getattr(event, name)
        if value is not None or name in _NULLABLE:
            document[name] = value
    if isinstance(event, Write | Poll):
        document["records"] = [record._asdict() for record in event.records]
    elif "position" in document:
        document["position"] = dict(document["position"])
    return document


def from_line(line: str | bytes) -> Event:
    """Return the event of a line. Raises ValueError with what is wrong with it."""
    try:
        document = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if type(document) is not dict:
        raise ValueError("not an object")
    name = document.get("kind")
    if type(name) is not str or name not in _READERS:
        raise ValueError(f"unknown kind {name!r}")
    kind, readers = _READERS[name]
    values: dict[str, Any] = {}
    for name, required, read in readers:
        if name in document:
            try:
                values[name] = read(document[name])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"field `{name}`: {error}") from error
        elif required:
            raise ValueError(f"field `{name}` is missing")
    return kind(**values)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"not a string: {value!r}")
    return value


def _name(value: Any) -> str:
    """Return a text of which there are few: each is kept once."""
    return intern(_text(value))


def _maybe_name(value: Any) -> str | None:
    return None if value is None else intern(_text(value))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"not a whole number: {value!r}")
    return value


def _maybe_whole(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _seconds(value: Any) -> float:
    if (type(value) is not float and type(value) is not int) or not isfinite(value):
        raise ValueError(f"not a time: {value!r}")
    return float(value)


def _mapping(value: Any) -> Mapping[str, object]:
    if type(value) is not dict:
        raise ValueError(f"not an object: {value!r}")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"not a list: {value!r}")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, _list(value)))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _one_of(*words: str) -> _Read:
    known = {word: word for word in words}

    def read(value: Any) -> str:
        word = known.get(value) if type(value) is str else None
        if word is None:
            raise ValueError(f"{value!r} is none of {', '.join(words)}")
        return word

    return read


def _written(value: Any) -> tuple[WrittenRecord, ...]:
    return tuple(
        WrittenRecord(
            _text(record["event"]),
            _name(record["topic"]),
            _maybe_name(record["key"]),
            _whole(record["seq"]),
            _text(record["hash"]),
        )
        for record in _list(value)
    )


def _polled(value: Any) -> tuple[PolledRecord, ...]:
    return tuple(
        PolledRecord(
            _name(record["topic"]),
            _whole(record["partition"]),
            _whole(record["offset"]),
            _text(record["event"]),
            _maybe_whole(record["id"]),
            _maybe_name(record["key"]),
            _whole(record["seq"]),
            _text(record["hash"]),
            _maybe_name(record["leader_id"]),
        )
        for record in _list(value)
    )


def _positions(value: Any) -> tuple[ReadPosition, ...]:
    return tuple(
        ReadPosition(_name(topic), _whole(partition), _whole(offset))
        for topic, partition, offset in map(_list, _list(value))
    )


class _Field(NamedTuple):
    name: str
    required: bool
    read: _Read


_READ: Mapping[str, _Read] = {
    "type": _one_of("invoke", "ok", "fail", "info"),
    "process": _name,
    "time": _seconds,
    "wall": _seconds,
    "number": _maybe_whole,
    "transaction": _text,
    "leader_id": _name,
    "shard": _whole,
    "epoch": _maybe_whole,
    "ids": _ids,
    "id": _whole,
    "event": _text,
    "events": _texts,
    "since": _seconds,
    "topic": _maybe_name,
    "partition": _maybe_whole,
    "offset": _maybe_whole,
    "reason": _maybe_name,
    "transactional_id": _name,
    "step": _one_of("begin", "commit", "abort", "end", "park", "retry", "drop"),
    "count": _whole,
    "subscription": _name,
    "generation": _whole,
    "position": _mapping,
    "isolation": _one_of("committed", "uncommitted"),
    "partitions": _positions,
    "consumer": _name,
    "fault": _name,
}
_OWN: Mapping[tuple[type[Event], str], _Read] = {
    (Write, "records"): _written,
    (Poll, "records"): _polled,
    (RecreatedTopic, "topic"): _name,
}
"""Fields that other kinds have too, and otherwise."""
_STAMPS = ("time", "wall")
"""They have a default for who makes an event; of one that was written down they must be known."""
_NULLABLE = frozenset({"epoch"})


def _fields(kind: type[Event]) -> tuple[_Field, ...]:
    def required(name: str, default: object) -> bool:
        return name in _STAMPS or default is MISSING or (kind.kind == "checkpoint" and name == "number")

    return tuple(
        _Field(field.name, required(field.name, field.default), _OWN.get((kind, field.name)) or _READ[field.name])
        for field in fields(kind)
    )


_READERS = {name: (kind, _fields(kind)) for name, kind in KINDS.items()}
_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in KINDS.values()}
