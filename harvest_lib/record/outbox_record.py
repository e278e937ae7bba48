"""Records that writers put into an outbox, and their limits.

Promise: if `OutboxRecord.check` accepts a record, the outbox table can store it and Kafka accepts it, as far as this
can be decided without a query to Postgres or Kafka.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvest_lib.errors import RecordError
from harvest_lib.record.header import HEADER_NAME, split

INTERNAL_TOPICS = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)

MESSAGE_ID = "message-id"
"""Name of the header with a message id, see `harvest_lib.sequencing.message_id`."""
_ID_BYTES, _VERSION_1, _VARIANT = 16, 0x10, 0x80

HEADERS = frozenset({HEADER_NAME, MESSAGE_ID})


TOPIC_MAX_CHARS = 249
"""Maximum length of a topic's name in Kafka, and the width of the column `kafka_topic`."""

_LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


def is_legal_topic(name: str) -> bool:
    """Return True if Kafka allows a topic of this name."""
    return name not in {".", ".."} and len(name) <= TOPIC_MAX_CHARS and _LEGAL_TOPIC.fullmatch(name) is not None


Header = tuple[str, str | None]
"""Name and value of a header. A record may have several headers of the same name; their order is preserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """The widths of the outbox table's columns, in characters; None means no limit. The defaults are the widths of the
    documented table."""

    key_chars: int | None = 100
    value_chars: int | None = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRecord:
    """A message to be written to the outbox in the caller's transaction, and published to Kafka afterwards.

    `value` is text, or bytes if the column has the type BYTEA. A dict or a list is written as JSON in UTF-8, for any
    type of the column. None is a tombstone. `headers` are pairs of name and value, in order, or a dict. Records with
    the same `key` reach Kafka in the order of their commits, if each writer locks the key (the aggregate's row) before
    it inserts.
    """

    topic: str
    key: str
    value: str | bytes | dict[str, Any] | list[Any] | None
    headers: Sequence[Header] | Mapping[str, str | None] = ()

    @property
    def header_pairs(self) -> list[Header]:
        """The headers as pairs. Raises RecordError if `headers` is neither a dict nor pairs."""
        given = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        pairs = [each for each in given if isinstance(each, tuple | list) and len(each) == 2]  # noqa: PLR2004 - a pair
        if isinstance(given, str | bytes) or len(pairs) != len(given):
            raise RecordError(
                f"the headers of a record for topic {str(self.topic)[:80]!r} are not pairs of name and value",
                next_step='give a dict, {"event": "placed"}, or pairs, [("event", "placed")]',
            )
        return [(name, value) for name, value in pairs]

    @property
    def payload(self) -> str | bytes | None:
        """The value as it is written: text, bytes or None; a dict or a list as JSON. Raises RecordError for a value of
        another type, and for a dict or a list that JSON cannot express."""
        if self.value is None or isinstance(self.value, str | bytes):
            return self.value
        if not isinstance(self.value, dict | list):
            raise self._of_another_type("value", self.value, "text, bytes, a dict or a list for JSON, or None")
        try:
            return json.dumps(self.value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(
                f"the value of a record for topic {str(self.topic)[:80]!r} cannot be written as JSON",
                evidence=str(error),
                next_step="convert what JSON cannot express, such as dates and decimals, or give the value as text",
            ) from None

    def check(self, limits: RecordLimits) -> None:
        """Raise RecordError if Kafka or the table would always reject this record."""
        if not isinstance(self.topic, str):
            raise self._of_another_type("topic", self.topic, "text")
        if self.topic in {".", ".."} or not _LEGAL_TOPIC.fullmatch(self.topic):
            raise RecordError(
                f"the topic name {self.topic[:80]!r} is not legal in Kafka",
                next_step="use letters, digits, '.', '_' and '-' only, and at least one of them",
            )
        if self.topic in INTERNAL_TOPICS:
            raise RecordError(
                f"the topic {self.topic!r} is Kafka's own",
                next_step="name a topic of the application",
            )
        self._check_length("topic", self.topic, TOPIC_MAX_CHARS)
        self._check_length("key", self.key, limits.key_chars)
        if isinstance(payload := self.payload, str):
            self._check_length("value", payload, limits.value_chars)
        headers = self.header_pairs
        for name, value in headers:
            self._check_length("header name", name, None)
            if value is not None:
                self._check_length("header value", value, None)
        if misleading := misleading_header(*zip(*headers, strict=True)) if headers else "":
            raise RecordError(
                f"a header {misleading!r} of a record for topic {self.topic[:80]!r} reads as the harvester's own",
                next_step="give the header another name, or its value another form",
            )

    def _of_another_type(self, what: str, given: object, wanted: str) -> RecordError:
        return RecordError(
            f"the {what} of a record for topic {str(self.topic)[:80]!r} is of a type that cannot be written",
            evidence=f"it is {type(given).__name__}",
            next_step=f"give {wanted}",
        )

    def _check_length(self, what: str, text: str, limit: int | None) -> None:
        if not isinstance(text, str):
            raise self._of_another_type(what, text, "text")
        if limit is not None and len(text) > limit:
            raise RecordError(
                f"the {what} of a record for topic {self.topic[:80]!r} is too long",
                evidence=f"{len(text)} characters, the column takes {limit}",
                next_step=f"shorten the {what}, or widen the column and pass matching `limits`",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RecordError(
                f"the {what} of a record for topic {self.topic[:80]!r} is not valid Unicode",
                evidence=f"a lone surrogate at position {error.start}",
                next_step="replace lone surrogates where the text is made",
            ) from None  # the cause would contain the text
        if "\x00" in text:
            raise RecordError(
                f"the {what} of a record for topic {self.topic[:80]!r} holds a NUL character",
                evidence=f"at position {text.index(chr(0))}",
                next_step="Postgres text cannot hold NUL: encode the payload (base64, JSON escapes)",
            )


def misleading_header(names: Sequence[str], contents: Sequence[str | bytes | None]) -> str:
    """Return the name of the first header that readers would take for a header of the harvester; empty if there is
    none."""
    for name, content in zip(names, contents, strict=False):
        if content is None or name not in HEADERS:
            continue
        if reads_as_ours(name, content if isinstance(content, bytes) else content.encode()):
            return name
    return ""


def reads_as_ours(name: str, value: bytes) -> bool:
    """Return True if readers take a header for a header of the harvester. The name is no proof."""
    return _is_message_id(value) if name == MESSAGE_ID else name == HEADER_NAME and _is_origin(value)


def _is_message_id(value: bytes) -> bool:
    """Return True if a value is a UUID of version 1 and of the variant of RFC 4122."""
    return len(value) == _ID_BYTES and value[6] & 0xF0 == _VERSION_1 and value[8] & 0xC0 == _VARIANT


def _is_origin(value: bytes) -> bool:
    try:
        split(value)
    except ValueError:
        return False
    return True
