"""What a run of messages comes to per row, so that a bulk touches each row once. Does no input and output."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harvest_lib.pipeline.message import Message, Op

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What becomes of a row. `clears`: what it was before is of no account. `data`: what it has then, None if it is
    not there. `is_new`: whether it is known to have been inserted; else columns that are not in `data` stay."""

    clears: bool
    data: Mapping[str, Any] | None
    is_new: bool = False


def outcomes(keyed: Iterable[tuple[Key, Message]]) -> dict[Key, Outcome]:
    """Return what becomes of each row, in the order in which rows were first touched. Writing each outcome once leaves
    what writing the messages one after the other would leave."""
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
