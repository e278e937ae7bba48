"""Transforms that need no code: pick, omit, rename, redact, route.

Fields are those at the top of a message's data. One that a message lacks is no error: a delete has its key alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.namespace import compiled

REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Pick:
    """Keep these fields, in this order, and no other."""

    fields: Sequence[str]

    def __call__(self, message: Message) -> Message:
        """Return the message with what was picked."""
        data = message.data
        return message._replace(data={name: data[name] for name in self.fields if name in data})


@dataclass(frozen=True, slots=True)
class Omit:
    """Leave these fields out."""

    fields: frozenset[str]

    def __call__(self, message: Message) -> Message:
        """Return the message without them."""
        return message._replace(data={name: each for name, each in message.data.items() if name not in self.fields})


@dataclass(frozen=True, slots=True)
class Rename:
    """Give fields other names, all at once: two may swap theirs."""

    names: Mapping[str, str]

    def __call__(self, message: Message) -> Message:
        """Return the message with new names. Raises ValueError where a field would be lost to another of its name."""
        data = {self.names.get(name, name): each for name, each in message.data.items()}
        if len(data) < len(message.data):
            twice = sorted({new for old, new in self.names.items() if new in message.data and old in message.data})
            raise ValueError(f"two fields would have one name: {', '.join(twice)}")
        return message._replace(data=data)


@dataclass(frozen=True, slots=True)
class Redact:
    """Put something else in the place of what fields hold. Fields that hold nothing (null) are left so."""

    fields: Sequence[str]
    by: Any = REDACTED

    def __call__(self, message: Message) -> Message:
        """Return the message without the contents of these fields."""
        data = dict(message.data)
        for name in self.fields:
            if data.get(name) is not None:
                data[name] = self.by
        return message._replace(data=data)


@dataclass(frozen=True, slots=True)
class Route:
    """Have a message under another namespace: `to`, in which `\\1` or `\\g<name>` is a group of what `find` matched.

    Without `find` all messages are routed; with it those whose whole namespace matches.
    """

    to: str
    find: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, to: str, find: str | None = None) -> "Route":
        """Compile one. Raises ValueError for what can never work."""
        if find is None:
            return cls(to=to)
        pattern = compiled(find)
        try:
            pattern.sub(to, "")  # reads the template before it looks for anything
        except (re.error, IndexError) as error:
            raise ValueError(f"`to` has a group that `find` has not: {error}") from error
        return cls(to=to, find=pattern)

    def __call__(self, message: Message) -> Message:
        """Return the message where it belongs."""
        if self.find is None:
            return message._replace(namespace=self.to)
        match = self.find.fullmatch(message.namespace)
        return message if match is None else message._replace(namespace=match.expand(self.to))
