"""`columns`: where the parts of a record stand in a table of another layout.

No SQL is taken from here: each part is the name of a column, or a constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harvest_lib.config.problems import custom_error, unsendable

LONGEST_IDENTIFIER_BYTES = 63
_REMEDY = "write the name of a column, or `{value: …}` for the same text in every record"


@dataclass(frozen=True, slots=True)
class Constant:
    """The same text for every record."""

    value: str


def _column(value: object) -> object:
    if not isinstance(value, str) or not value or unsendable(value):
        raise custom_error("is not the name of a column", "write the name as the catalogue has it")
    if len(value.encode()) > LONGEST_IDENTIFIER_BYTES:
        raise custom_error(
            f"is a name of more than {LONGEST_IDENTIFIER_BYTES} bytes, which no column has",
            "write the name as the catalogue has it",
        )
    return value


def _part(value: object) -> object:
    if isinstance(value, Mapping):
        constant = value.get("value")
        if set(value) != {"value"} or not isinstance(constant, str) or unsendable(constant):
            raise custom_error("is neither a column nor a constant text", _REMEDY)
        return Constant(constant)
    return value if isinstance(value, Constant) else _column(value)


Column = Annotated[str, BeforeValidator(_column)]
Part = Annotated[str | Constant, BeforeValidator(_part)]


class ColumnMapping(BaseModel):
    """Columns or constants for the parts of a record. Parts left out have the native table's columns; there are no
    headers unless they are named."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Column = "id"
    """A whole number that rises with every record, from a sequence."""
    transaction_id: Column = "transaction_id"
    """The transaction that wrote the record, of type xid8."""
    kafka_topic: Part = "kafka_topic"
    kafka_key: Part = "kafka_key"
    kafka_value: Part = "kafka_value"
    """Sent as the text that Postgres makes of it; bytea as it is."""
    create_time: Column | None = None
    """Creation time of the record, of type timestamptz, for the age of the backlog. Default: not known."""
    headers: Mapping[Annotated[str, Field(min_length=1)], Part] = Field(default_factory=dict)
    """By name, in order."""
