"""Events as lines of JSON. Fields and their types are checked; unknown fields are ignored."""

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict  # comes with pydantic, which needs it before Python 3.12

from infra.chaos.history.events import KINDS, Event, Poll, Write

_NULLABLE = frozenset({"epoch"})
"""Fields that are written as null if they are None. Any other field is left out if it is None."""
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
"""Types of the errors by which pydantic, depending on its release, reports an unknown field of a NamedTuple."""


def to_line(event: Event) -> str:
    """Return the event as a line of JSON, with a newline at its end."""
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
    """Return the event of a line. Raises ValueError with the reason if it is malformed."""
    try:
        values = _LINE.validate_json(line, strict=True)
    except ValidationError as error:
        values = _without_unknown(line, error.errors(include_url=False))
    return KINDS[values.pop("kind")](**values)


def _without_unknown(line: str | bytes, errors: list[ErrorDetails]) -> dict[str, Any]:
    """Return the values of a line without unknown fields of its records. Raises ValueError for any other error."""
    for error in errors:
        if error["type"] not in _UNKNOWN:
            raise ValueError(_complaint(error))
    document = json.loads(line)
    for error in errors:
        _, *path, name = error["loc"]
        record = document
        for step in path:
            record = record[step]
        record.pop(name, None)
    try:
        return _LINE.validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise ValueError(_complaint(error.errors(include_url=False)[0])) from error


def _complaint(error: ErrorDetails) -> str:
    match error["type"]:
        case "union_tag_invalid" | "union_tag_not_found":
            kind = error["input"].get("kind") if isinstance(error["input"], dict) else None
            return f"unknown kind {kind!r}"
        case "json_invalid":
            return error["msg"]
        case "missing" if len(error["loc"]) == 2:  # noqa: PLR2004 - the kind, and a field of the event
            return f"field `{error['loc'][1]}` is missing"
    _, *path = error["loc"] or ("",)
    if not path:
        return "not an object"
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:])
    return f"field `{path[0]}`{place and f' at {place}'}: {error['msg']}, not {error['input']!r}"


def _line_of(kind: type[Event]) -> Any:
    """Return a TypedDict for the lines of an event class. Fields with a default may be missing in a line.

    `time` and `wall` have default factories only for code that makes an event; a line must have both.
    """
    hints = get_type_hints(kind)
    types: dict[str, Any] = {"kind": Literal[kind.kind]}
    for each in fields(kind):
        hint = Annotated[float, Field(allow_inf_nan=False)] if hints[each.name] is float else hints[each.name]
        optional = each.default is not MISSING and not (kind.kind == "checkpoint" and each.name == "number")
        types[each.name] = NotRequired[hint] if optional else Required[hint]
    return TypedDict(kind.__name__, types)  # type: ignore[operator]  # a type for each kind


def _any_of(lines: Iterable[Any]) -> Any:
    return Annotated[Union[tuple(lines)], Field(discriminator="kind")]  # noqa: UP007 - how many is not known here


_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in KINDS.values()}
_LINE: TypeAdapter[dict[str, Any]] = TypeAdapter(_any_of(map(_line_of, KINDS.values())))
