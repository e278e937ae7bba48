"""The setting `columns`: maps the parts of a record to the columns of a table that has another layout.

No SQL is accepted here: each part is the name of a column, or a constant.
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
    """A part of a record that has the same text in every record."""

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
    """Columns or constants for the parts of a record. A part that is left out is read from a column with the name that
    the part has in the native table. Records have only the headers that are named here."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Column = "id"
    """Column of the record's id: a whole number from a sequence, which rises with every record."""
    transaction_id: Column = "transaction_id"
    """Column of type xid8 with the id of the transaction that wrote the record."""
    kafka_topic: Part = "kafka_topic"
    kafka_key: Part = "kafka_key"
    kafka_value: Part = "kafka_value"
    """The value of the record. A bytea value is sent unchanged; a value of another type is sent as Postgres' text."""
    create_time: Column | None = None
    """Column of type timestamptz with the record's creation time, for the age of the backlog. Default: unknown."""
    headers: Mapping[Annotated[str, Field(min_length=1)], Part] = Field(default_factory=dict)
    """The part for each header, by the header's name; records carry the headers in this order."""
