"""Contracts of the pipeline's rows: flights, outbox rows, and the summary of an audit.

Each contract is written once, as data, and becomes two equivalent pandera models: for pandas, and for Spark.

    FLIGHTS.enforce(frame)        pandas or Spark; returns the frame, or raises ContractBroken, also for an empty frame
    FlightsModel, OutboxModel, AuditSummaryModel                      the models for pandas
    FlightsSparkModel, OutboxSparkModel, AuditSummarySparkModel       the models for Spark

An error names each column and the check it fails, and never a value, because rows may hold personal data. pandera's own
messages do hold values, so they are not repeated. Importing this module takes a second or two, because it imports
pandas.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Optional

import pandas as pd
import pandera.pandas as pap
import pandera.pyspark as pas
from pandera.errors import SchemaError, SchemaErrors
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from harvest_lib.errors import HarvestError

Kind = Literal["integer", "bigint", "double", "text", "texts", "timestamp"]

_SPARK: Mapping[Kind, Any] = {
    "integer": T.IntegerType,
    "bigint": T.LongType,
    "double": T.DoubleType,
    "text": T.StringType,
    "texts": T.ArrayType(T.StringType()),
    "timestamp": T.TimestampType,
}
_PANDAS: Mapping[Kind, Any] = {
    "integer": pd.Int64Dtype,
    "bigint": pd.Int64Dtype,
    "double": pd.Float64Dtype,
    "text": pd.StringDtype,
    "texts": object,
    "timestamp": pd.DatetimeTZDtype(unit="ns", tz="UTC"),
}
_INT32 = {"min_value": -(2**31), "max_value": 2**31 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A column and the check that it fails. For a check of whole rows `column` is the contract's name."""

    column: str
    check: str

    def __str__(self) -> str:
        return f"{self.column}: {self.check}"


class ContractBroken(HarvestError):
    """Rows break their contract: correct the job that wrote them, or the contract."""

    exit_code = 9

    def __init__(self, contract: str, failures: tuple[Failure, ...]) -> None:
        self.failures = failures
        super().__init__(
            f"the {contract} break their contract: {len(failures)} of its checks fail",
            evidence="; ".join(map(str, failures)),
            next_step="correct what wrote them; nothing downstream should read them",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnContract:
    """One column: its kind, whether it may be null or absent, and its limits, both included.

    `least` and `most` limit the value of a number, or the length of a text in characters.
    """

    kind: Kind
    nullable: bool = False
    required: bool = True
    least: int | None = None
    most: int | None = None

    def checks(self) -> dict[str, Any]:
        """Return the limits as arguments of pandera's `Field`, for pandas and Spark alike."""
        if self.kind == "text":
            limits = {"min_value": self.least, "max_value": self.most}
            return {"str_length": limits} if limits != {"min_value": None, "max_value": None} else {}
        given = {"ge": self.least, "le": self.most}
        return {name: limit for name, limit in given.items() if limit is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class Contract:
    """The columns of a table, and conditions on whole rows. Each condition has two forms: a function of a pandas frame
    that is true for good rows, and an SQL expression for Spark that is true for good rows."""

    name: str
    columns: Mapping[str, ColumnContract]
    rows: Mapping[str, tuple[Callable[[pd.DataFrame], Any], str]] = field(default_factory=dict)

    @cached_property
    def pandas_model(self) -> type[pap.DataFrameModel]:
        """The model for pandas. It validates frames that `as_declared` returned."""
        series: Any = pap.typing.Series
        members: dict[str, Any] = {"__annotations__": {}, "__doc__": f"The {self.name}, in pandas."}
        for name, column in self.columns.items():
            declared = series[_PANDAS[column.kind]]
            members["__annotations__"][name] = declared if column.required else Optional[declared]  # noqa: UP045
            limits = column.checks()
            if column.kind == "integer":
                limits["in_range"] = _INT32
            members[name] = pap.Field(nullable=column.nullable, **limits)
            if column.kind == "texts":
                members[f"check_{name}"] = pap.check(name, name="texts", element_wise=True)(_are_texts)
        for name, (condition, _) in self.rows.items():
            members[f"check_{name}"] = pap.dataframe_check(name=name)(_of_class(condition))
        return type(f"{_title(self.name)}Model", (pap.DataFrameModel,), members)

    @cached_property
    def spark_model(self) -> type[Any]:
        """The model for Spark."""
        members: dict[str, Any] = {"__annotations__": {}, "__doc__": f"The {self.name}, in Spark."}
        for name, column in self.columns.items():
            declared = _SPARK[column.kind]
            members["__annotations__"][name] = declared if column.required else Optional[declared]  # noqa: UP045
            members[name] = pas.Field(nullable=column.nullable, **column.checks())
        for name, (_, condition) in self.rows.items():
            members[f"check_{name}"] = pas.dataframe_check(name=name)(_of_class(_no_row_without(condition)))
        return type(f"{_title(self.name)}SparkModel", (pas.DataFrameModel,), members)

    def enforce(self, frame: Any, *, allow_empty: bool = False) -> Any:
        """Return the frame if it fulfils the contract; raise ContractBroken with every check that fails.

        A frame without rows proves nothing and fails, unless `allow_empty`. A pandas frame is returned with the
        declared types. Each check of a Spark frame is a Spark job, so cache a frame that is costly to compute.
        """
        missing = [name for name, column in self.columns.items() if column.required and name not in frame.columns]
        if missing:  # pandera's own message would quote a row
            raise ContractBroken(self.name, tuple(Failure(column=name, check="is missing") for name in missing))
        is_pandas = isinstance(frame, pd.DataFrame)
        enforced = self._enforce_pandas(frame) if is_pandas else self._enforce_spark(frame)
        if not allow_empty and (frame.empty if is_pandas else frame.isEmpty()):
            raise ContractBroken(self.name, (Failure(column=self.name, check="has no rows"),))
        return enforced

    def _enforce_pandas(self, frame: pd.DataFrame) -> pd.DataFrame:
        declared = self.as_declared(frame)
        try:
            self.pandas_model.validate(declared, lazy=True)
        except SchemaErrors as error:
            raise ContractBroken(self.name, self._failures(error.schema_errors)) from None  # its text has values
        return declared

    def _enforce_spark(self, frame: DataFrame) -> DataFrame:
        wrong = [
            Failure(column=name, check=f"dtype({frame.schema[name].dataType.simpleString()}), not {column.kind}")
            for name, column in self.columns.items()
            if name in frame.columns and not _has_kind(frame.schema[name].dataType, column.kind)
        ]
        if wrong:  # the checks of a column do not apply to another type
            raise ContractBroken(self.name, tuple(wrong))
        # pandera.pyspark collects failures, and raises nothing.
        found = self.spark_model.validate(frame).pandera.errors
        listed = [each for kinds in found.values() for failures in kinds.values() for each in failures]
        if listed:
            failures = [
                Failure(column=each["column"] if each["column"] in self.columns else self.name, check=each["check"])
                for each in listed
            ]
            raise ContractBroken(self.name, tuple(dict.fromkeys(failures)))
        return frame

    def as_declared(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a pandas frame with the declared types, where a conversion leaves the content unchanged.

        pandas has many types for the same content: integers with a null among them are floats, text is `object`. Values
        of another kind than declared stay unchanged, and the model rejects them.
        """
        result = frame.convert_dtypes()
        for name, column in self.columns.items():
            if name not in result.columns:
                continue
            values = result[name]
            if column.kind == "text" and values.map(lambda value: isinstance(value, uuid.UUID)).any():
                values = values.map(str, na_action="ignore").convert_dtypes()
            empty = not values.notna().any()
            numbers = column.kind == "double" and pd.api.types.is_integer_dtype(values)
            instants = column.kind == "timestamp" and isinstance(values.dtype, pd.DatetimeTZDtype)
            if column.kind == "texts":
                values = values.astype(object)
            elif empty or numbers or instants:
                kind = _PANDAS[column.kind]
                values = values.astype(kind() if isinstance(kind, type) else kind)
            result[name] = values
        return result

    def _failures(self, errors: list[SchemaError]) -> tuple[Failure, ...]:
        """Return failures of one kind only: of types, or, if there are none, of columns, or, if there are none, of
        whole rows. Failures of a later kind would be consequences of failures of an earlier kind."""
        types, columns, rows = [], [], []
        for error in errors:
            check = getattr(error.check, "error", None) or getattr(error.check, "name", None) or str(error.check)
            if error.schema.name not in self.columns:
                rows.append(Failure(column=self.name, check=check))
            elif check.startswith("dtype"):
                types.append(Failure(column=error.schema.name, check=check))
            else:
                count = len(error.failure_cases) if isinstance(error.failure_cases, pd.DataFrame) else 1
                columns.append(Failure(column=error.schema.name, check=f"{check} ({count} rows)"))
        return tuple(dict.fromkeys(types or columns or rows))


def _has_kind(found: T.DataType, kind: Kind) -> bool:
    if kind == "texts":
        return isinstance(found, T.ArrayType) and isinstance(found.elementType, T.StringType)
    return isinstance(found, _SPARK[kind])


def _of_class(condition: Callable[[Any], Any]) -> Callable[[type, Any], Any]:
    return lambda _cls, frame: condition(frame)


def _no_row_without(condition: str) -> Callable[[DataFrame], bool]:
    return lambda frame: bool(frame.where(f"NOT ({condition})").isEmpty())


def _are_texts(_cls: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split())


_COUNT = ColumnContract(kind="bigint", least=0)
_KNOWN_COUNT = ColumnContract(kind="bigint", least=0, nullable=True)
_CLOCK = ColumnContract(kind="integer", least=0, most=2400)
"""Hours and minutes as a single number: 1745."""

FLIGHTS = Contract(
    name="flights",
    columns={
        "flight_id": ColumnContract(kind="bigint", required=False, least=1),
        "year": ColumnContract(kind="integer", least=1900, most=2100),
        "month": ColumnContract(kind="integer", least=1, most=12),
        "day": ColumnContract(kind="integer", least=1, most=31),
        "dep_time": replace(_CLOCK, nullable=True),
        "sched_dep_time": _CLOCK,
        "dep_delay": ColumnContract(kind="integer", nullable=True),
        "arr_time": replace(_CLOCK, nullable=True),
        "sched_arr_time": _CLOCK,
        "arr_delay": ColumnContract(kind="integer", nullable=True),
        "carrier": ColumnContract(kind="text", least=2, most=3),
        "flight": ColumnContract(kind="integer", least=1, most=99_999),
        "tail_number": ColumnContract(kind="text", nullable=True, least=1, most=10),
        "origin": ColumnContract(kind="text", least=3, most=4),
        "dest": ColumnContract(kind="text", least=3, most=4),
        "air_time": ColumnContract(kind="integer", nullable=True, least=0),
        "distance": ColumnContract(kind="integer", least=0, most=20_000),
        "hour": ColumnContract(kind="integer", least=0, most=24),
        "minute": ColumnContract(kind="integer", least=0, most=59),
        "time_hour": ColumnContract(kind="timestamp"),
        "batch": ColumnContract(kind="text", required=False, least=1),
    },
)

OUTBOX = Contract(
    name="outbox rows",
    columns={
        "id": ColumnContract(kind="bigint", required=False),
        "create_time": ColumnContract(kind="timestamp", required=False),
        "kafka_topic": ColumnContract(kind="text", least=1, most=249),
        "kafka_key": ColumnContract(kind="text", most=100),
        "kafka_value": ColumnContract(kind="text", nullable=True, most=10_000),
        "kafka_header_keys": ColumnContract(kind="texts"),
        "kafka_header_values": ColumnContract(kind="texts"),
    },
    rows={
        "as_many_header_keys_as_values": (
            lambda frame: frame["kafka_header_keys"].map(len) == frame["kafka_header_values"].map(len),
            "size(kafka_header_keys) = size(kafka_header_values)",
        )
    },
)

AUDIT_SUMMARY = Contract(
    name="audit summary",
    columns={
        "audit_id": ColumnContract(kind="text", least=1, most=200),
        "at": ColumnContract(kind="timestamp"),
        "records": _COUNT,
        "committed": _COUNT,
        "lost": _COUNT,
        "duplicates_adjacent": _COUNT,
        "duplicates_separated": _COUNT,
        "duplicates_cross_epoch": _COUNT,
        "reordered": _COUNT,
        "unknown": _COUNT,
        "foreign_messages": _COUNT,
        # Two clocks measure a delay: a little below zero is no error.
        "delay_p50_ms": ColumnContract(kind="double", nullable=True),
        "delay_p95_ms": ColumnContract(kind="double", nullable=True),
        "delay_p99_ms": ColumnContract(kind="double", nullable=True),
        "delay_max_ms": ColumnContract(kind="double", nullable=True),
        "backlog_records": _COUNT,
        "backlog_age_seconds": ColumnContract(kind="double", least=0),
        # Null if the row of a lost record was purged, so that the record's key is unknown.
        "keys": _KNOWN_COUNT,
        "keys_with_gaps": _KNOWN_COUNT,
        "other_contents": _COUNT,
    },
    rows={
        "no_more_keys_with_gaps_than_keys": (
            lambda frame: ~(frame["keys_with_gaps"] > frame["keys"]).fillna(value=False),
            "NOT coalesce(keys_with_gaps > `keys`, false)",
        ),
        "gaps_in_keys_are_those_of_records": (
            lambda frame: (
                frame["keys_with_gaps"].isna()
                | (frame["keys_with_gaps"].fillna(0) > 0).eq(
                    frame["lost"] + frame["reordered"] + frame["unknown"] + frame["other_contents"] > 0
                )
            ),
            "coalesce((keys_with_gaps > 0) = (lost + reordered + unknown + other_contents > 0), true)",
        ),
        "no_more_lost_than_committed": (lambda frame: frame["lost"] <= frame["committed"], "lost <= committed"),
        "no_more_foreign_messages_than_records": (
            lambda frame: frame["foreign_messages"] <= frame["records"],
            "foreign_messages <= records",
        ),
    },
)

FlightsModel, FlightsSparkModel = FLIGHTS.pandas_model, FLIGHTS.spark_model
OutboxModel, OutboxSparkModel = OUTBOX.pandas_model, OUTBOX.spark_model
AuditSummaryModel, AuditSummarySparkModel = AUDIT_SUMMARY.pandas_model, AUDIT_SUMMARY.spark_model
