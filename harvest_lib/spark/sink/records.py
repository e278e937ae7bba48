"""The declaration of how a frame's row becomes a record in the outbox, and the checks that need no server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harvest_lib.errors import ConfigError
from harvest_lib.record import TOPIC_MAX_CHARS, is_legal_topic

KEY_SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class Fixed:
    """The text of a header: the same text in every record."""

    text: str


@dataclass(frozen=True, slots=True)
class BatchId:
    """The text of a header: the id of the batch."""


HeaderSource = str | Fixed | BatchId
"""The source of a header's text: the name of a column, a fixed text, or the batch's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How rows become records. A column belongs to the frame, or to the business table if that table fills it (a serial
    id).

    `topic` is the topic of all records, or `topic_column` a column of the frame with each record's topic.
    `key` is a column, or several columns whose texts are joined by a colon; a row with null in the key is refused.
    `value` is a column, taken as text (null is a tombstone), or several columns, which become a JSON object with nulls;
    None stands for all columns of the frame but `topic_column` and `headers_column`. Bytes in a single column of key or
    value are read as UTF-8, if the outbox has text. `headers_column` is a map of text to text or bytes, or an array of
    structs of both, as Spark's Kafka source has it; its headers follow `headers`. `create_time_column` has the records'
    times; null stands for the time of the write. Records get their ids in the order of the columns `order_by`. Rows
    that are equal in these columns keep the frame's order; without `order_by` all rows do. Raises ConfigError for an
    invalid name of a topic, or if there is no key, no topic, or two topics.
    """

    topic: str | None = None
    key: str | Sequence[str]
    value: str | Sequence[str] | None = None
    headers: Mapping[str, HeaderSource] = field(default_factory=dict)
    order_by: Sequence[str] = ()
    topic_column: str | None = None
    headers_column: str | None = None
    create_time_column: str | None = None

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_column is None):
            raise ConfigError(
                "no topic was named" if self.topic is None else "a topic and a column of topics were named",
                field="--topic",
                next_step="name one of them: the topic of all records, or the column with each record's topic",
            )
        if self.topic is not None and not is_legal_topic(self.topic):
            raise ConfigError(
                f"{self.topic[:TOPIC_MAX_CHARS]!r} cannot name a Kafka topic",
                field="--topic",
                next_step=f"use at most {TOPIC_MAX_CHARS} of a-z A-Z 0-9 . _ -",
            )
        if isinstance(self.order_by, str):
            raise ConfigError("order_by is a text", field="order_by", next_step="give a list of columns")
        if not self.key:
            raise ConfigError("no column was named for the key", field="--key", next_step="name a column, or several")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key, in the order in which their texts are joined."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    def value_columns(self, frame: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the value, given the frame's columns."""
        if self.value is None:
            return tuple(name for name in frame if name not in (self.topic_column, self.headers_column))
        return (self.value,) if isinstance(self.value, str) else tuple(self.value)

    def columns(self, frame: Sequence[str]) -> dict[str, str]:
        """Return the columns that a record is made of, each with the command's option that names it."""
        used = dict.fromkeys(self.value_columns(frame), "--value")
        used |= {source: "--header" for source in self.headers.values() if isinstance(source, str)}
        return used | dict.fromkeys(self.key_columns, "--key") | self.row_columns

    @property
    def row_columns(self) -> dict[str, str]:
        """The frame's columns with topic, headers and time of each record, each with the option that names it."""
        named = {
            self.topic_column: "--topic-column",
            self.headers_column: "--headers-column",
            self.create_time_column: "--create-time-column",
        }
        return {name: option for name, option in named.items() if name is not None}


def one_or_several(columns: list[str]) -> str | list[str]:
    """Return the column of a list of one, else the list, as `Records` takes a key or a value."""
    return columns[0] if len(columns) == 1 else columns
