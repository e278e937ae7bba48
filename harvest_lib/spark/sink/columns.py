"""The columns of the staging table: the names and the types that the columns of a frame have there."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as spark

from harvest_lib.errors import ConfigError

BOOKKEEPING = {
    "batch": "text",
    "run": "uuid",
    "partition": "integer",
    "attempt": "xid8",
    "row": "bigint",
    "row_hash": "bigint",
}
_SYSTEM_COLUMNS = frozenset({"tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"})
"""Names that a column of a table in Postgres cannot have."""
_TYPES: Mapping[type[spark.DataType], str] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.DecimalType: "numeric",
    spark.StringType: "text",
    spark.VarcharType: "text",
    spark.CharType: "text",
    spark.BinaryType: "bytea",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
}
_BY_COPY: Mapping[type[spark.DataType], str] = {
    spark.NullType: "text",
    spark.DayTimeIntervalType: "interval",
}
"""Further types, which Spark's JDBC writer does not take."""
SAME_TEXT = frozenset({"text", "smallint", "integer", "bigint"})
"""Types whose values have the same text in Spark, Arrow and Postgres."""
_LONGEST_NAME_BYTES = 63
_MOST_COLUMNS = 1600 - len(BOOKKEEPING)

Content = Literal["column", "json", "headers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedColumn:
    """A column of the frame: its name, the name it has in the staging table, and its type in Postgres.

    `content` is "json" for maps, structs, variants and arrays of them, which are staged as the text of a JSON value. It
    is "headers" for the records' headers, which are staged as an array in which names and texts alternate.
    """

    name: str
    staged: str
    type: str
    content: Content = "column"


def staged_columns(
    schema: spark.StructType, *, by_copy: bool = False, headers_column: str | None = None
) -> tuple[StagedColumn, ...]:
    """Return the staging table's columns for a frame. Raises ConfigError for a name or a type that cannot be staged.

    `by_copy` stands for tasks that write with COPY, which take more types than Spark's JDBC writer.
    """
    if len(schema.fields) > _MOST_COLUMNS:
        raise ConfigError(
            f"the frame has {len(schema.fields)} columns; a staging table in Postgres takes {_MOST_COLUMNS}",
            next_step="combine columns with to_json(struct(...)), or leave some out",
        )
    seen: set[str] = set()
    given = {each.name.lower() for each in schema.fields}
    columns = []
    for each in schema.fields:
        if each.name.lower() in seen:
            raise ConfigError(
                f"the frame has two columns {each.name!r}",
                field=each.name,
                next_step="rename one of them: column names are case-insensitive in Spark's JDBC writer",
            )
        seen.add(each.name.lower())
        staged = _staged(each.name, given)
        if not each.name or len(staged.encode()) > _LONGEST_NAME_BYTES or "\0" in staged or '"' in staged:
            raise ConfigError(
                f"{each.name!r} cannot name a column in Postgres",
                field=each.name,
                next_step=f"rename it: at most {_LONGEST_NAME_BYTES} bytes, no double quotes",
            )
        kind, content = _placed(each, by_copy=by_copy, is_headers=each.name == headers_column)
        columns.append(StagedColumn(name=each.name, staged=staged, type=kind, content=content))
    return tuple(columns)


def _staged(name: str, given: Collection[str]) -> str:
    """Return a column's name in the staging table. No bookkeeping, system or other frame column has the same name."""
    if name.lower() not in BOOKKEEPING and name not in _SYSTEM_COLUMNS:
        return name
    staged = f"{name} (frame)"
    while staged.lower() in given:
        staged += "_"
    return staged


def _placed(each: spark.StructField, *, by_copy: bool, is_headers: bool) -> tuple[str, Content]:
    """Return the type that a column has in the staging table, and its content."""
    if is_headers:
        _check_headers(each, by_copy=by_copy)
        return "text[]", "headers"
    kind, suffix = each.dataType, ""
    if isinstance(kind, spark.ArrayType):
        kind, suffix = kind.elementType, "[]"
    found = _TYPES.get(type(kind)) or (_BY_COPY.get(type(kind)) if by_copy and not suffix else None)
    if found is not None and (found != "bytea" or not suffix):
        return found + suffix, "column"
    if by_copy and found is None and _is_json(each.dataType):
        return "text", "json"
    raise _untaken(each, by_copy=by_copy)


def _check_headers(each: spark.StructField, *, by_copy: bool) -> None:
    if not by_copy:
        raise ConfigError(
            f"the headers' column {each.name!r} cannot be written by JDBC or through the driver",
            field="--headers-column",
            next_step='write the frame by format("outbox")',
        )
    if not _is_headers(each.dataType):
        raise ConfigError(
            f"the headers' column {each.name!r} is of type {each.dataType.simpleString()}",
            field="--headers-column",
            next_step="make it map<string,string>, or as Kafka's source has it array<struct<key:string,value:binary>>",
        )


def _is_json(kind: spark.DataType) -> bool:
    match kind:
        case spark.ArrayType():
            return _is_json(kind.elementType)
        case spark.MapType():
            return type(kind.keyType) in _TYPES and _is_json(kind.keyType) and _is_json(kind.valueType)
        case spark.StructType():
            names = [each.name for each in kind.fields]
            return len({*names}) == len(names) and all(_is_json(each.dataType) for each in kind.fields)
        case spark.VariantType() | spark.NullType():
            return True
    return type(kind) in _TYPES and not isinstance(kind, spark.BinaryType)


def _is_headers(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.MapType):
        name, text = kind.keyType, kind.valueType
    elif isinstance(kind, spark.ArrayType) and isinstance(kind.elementType, spark.StructType):
        fields = kind.elementType.fields
        if [each.name for each in fields] != ["key", "value"]:
            return False
        name, text = fields[0].dataType, fields[1].dataType
    else:
        return False
    return isinstance(name, spark.StringType) and isinstance(text, spark.StringType | spark.BinaryType)


def _untaken(each: spark.StructField, *, by_copy: bool) -> ConfigError:
    kind = each.dataType.simpleString()
    if by_copy:
        return ConfigError(
            f"the frame's column {each.name!r} is of type {kind}, which has no place in an outbox",
            field=each.name,
            next_step="cast it to a string in the frame (bytes by base64 or hex), or leave it out",
        )
    return ConfigError(
        f"the frame's column {each.name!r} is of type {kind}, which JDBC cannot carry",
        field=each.name,
        next_step='write the frame by format("outbox"), make the column text with to_json, or leave it out',
    )
