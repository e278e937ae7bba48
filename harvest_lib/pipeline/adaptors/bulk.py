"""Outcome of a run of messages per row, so that a bulk touches each row once. Does no input and output."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harvest_lib.pipeline.message import Message, Op

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a row. `clears`: its state before is of no account. `data`: its columns afterwards, None if it is
    deleted. `is_new`: it is known to have been inserted; else columns that are not in `data` stay."""

    clears: bool
    data: Mapping[str, Any] | None
    is_new: bool = False


def outcomes(keyed: Iterable[tuple[Key, Message]]) -> dict[Key, Outcome]:
    """Return the outcome of each row, in the order in which rows were first touched. Writing each outcome once leaves
    the same rows as writing the messages one after the other."""
    found: dict[Key, Outcome] = {}
    for key, message in keyed:
        before = found.get(key)
        if message.op is Op.DELETE:
            found[key] = Outcome(clears=True, data=None)
            continue
        is_new = message.op is Op.INSERT
        if before is None:
            found[key] = Outcome(clears=False, data=message.data, is_new=is_new)
        else:
            data = message.data if before.data is None else {**before.data, **message.data}
            found[key] = Outcome(clears=before.clears, data=data, is_new=before.is_new or is_new)
    return found
