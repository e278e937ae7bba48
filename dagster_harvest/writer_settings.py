"""The fields of a writer: a function or a module that fills an outbox by Spark, a partition at a time."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from dagster_harvest.fields import Described
from dagster_harvest.import_path import DOTTED

PLACE = re.compile(r"\{([a-z_]+)\}")
"""Pattern of a placeholder in `arguments`."""
_TIMES = {"start", "end", "key", "first_key", "last_key"}
_PLACES = {"outbox", *_TIMES}


class RecordColumns(Described):
    """The mapping of a row of the function's frame to a record, as in `Records` of the Spark sink."""

    topic: str | None = None
    """The Kafka topic. Default: the topic of the outbox, if the outbox has one topic."""
    key: str | Sequence[str]
    """The column of the key. Texts of several columns are joined by a colon."""
    value: str | Sequence[str] | None = None
    """The column of the value, or several columns, which become a JSON object. Default: all columns."""
    headers: Mapping[str, str] = {}
    """Maps the name of a header to a column. Default none."""
    fixed_headers: Mapping[str, str] = {}
    """Maps the name of a header to its text. Default none."""
    batch_header: str | None = None
    """The name of a header that holds the id of the batch. Default none."""
    order_by: Sequence[str] = ()
    """The columns by whose order records get their ids. Default: the order of the frame."""


class SparkWriterSettings(Described):
    """A Spark job that fills the outbox, and a business table if one is named, a partition at a time."""

    function: str | None = Field(default=None, pattern=DOTTED)
    """Import path of a function that returns a DataFrame, such as `acme.jobs.orders.frame`. The function may have the
    parameters `spark`, `start`, `end` and `key`. Spark's sink writes the frame. Default none."""
    records: RecordColumns | None = None
    """The record of each row. Required with `function`."""
    module: str | None = None
    """A module to run as `python -m`, which writes by itself. Default none."""
    arguments: Sequence[str] = ()
    """Arguments of the module. `{start}` and `{end}` are the limits of the run's partitions, `{first_key}` and
    `{last_key}` their first and last key, `{outbox}` is the outbox table. With `{key}` the module runs once for each
    partition. Default none."""
    table: str | None = None
    """The business table that the job writes too: `table` or `schema.table`. Default none."""
    batch_column: str | None = None
    """The column of the business table that gets the id of the batch. Only with `function`. Default none."""
    batch_prefix: str | None = None
    """The ids of batches are `<batch_prefix>-<partition>`. The ledger identifies data by these ids. Only with
    `function`. Default: the name of the outbox."""
    contract: str | None = Field(default=None, pattern=DOTTED)
    """Import path of the contract of the business table's rows, which the check `schema` enforces. Default none."""
    partitions: Literal["daily", "hourly", "none"] = "daily"
    """The partitions of the assets. A run with several partitions starts Spark once. Default `daily`."""
    start: str | None = None
    """The first partition, `YYYY-MM-DD` or `YYYY-MM-DDTHH:00`. Required unless `partitions` is `none`."""
    end: str | None = None
    """The end of the last partition, as `start`. Default none: partitions continue."""
    timezone: str = "UTC"
    """The time zone of the partitions. Default UTC."""

    @field_validator("start", "end")
    @classmethod
    def _is_time(cls, text: str | None) -> str | None:
        if text is not None and datetime.fromisoformat(text).tzinfo is not None:
            message = f"{text!r} has a time zone of its own: name the zone by `timezone`"
            raise ValueError(message)
        return text

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError) as error:
            message = f"there is no time zone {name!r}: name one such as Europe/Vienna"
            raise ValueError(message) from error
        return name

    @model_validator(mode="after")
    def _agree(self) -> Self:
        problem = self._problem_of_job() or self._problem_of_partitions()
        if problem is not None:
            raise ValueError(problem)
        return self

    def _problem_of_job(self) -> str | None:
        if (self.function is None) == (self.module is None):
            named = "neither" if self.function is None else "both"
            return f"writer names {named} of `function`, which returns a frame, and `module`, which writes: name one"
        if self.function is None:
            misplaced = [
                name for name in ("records", "batch_column", "batch_prefix") if getattr(self, name) is not None
            ]
            return f"{misplaced[0]} is for a `function`: a `module` writes by itself" if misplaced else None
        if self.records is None:
            return "records is missing: name at least the column of the key, as in `records: {key: order_id}`"
        if self.batch_column is not None and self.table is None:
            return "batch_column is a column of the business table: name the `table` too"
        return "arguments are for a `module`; a `function` is called with its partition" if self.arguments else None

    def _problem_of_partitions(self) -> str | None:
        used = {name for each in self.arguments for name in PLACE.findall(each)}
        if strange := sorted(used - _PLACES):
            return f"arguments has the unknown {{{strange[0]}}}: known are {', '.join(sorted(_PLACES))}"
        if self.partitions == "none":
            needless = self.start or self.end or next(iter(sorted(used & _TIMES)), None)
            return f"with `partitions: none` there is no {needless}" if needless else None
        if self.start is None:
            return "start is missing: name the first day, or set `partitions: none`"
        if self.end is not None and self.end_time <= self.start_time:
            return f"end {self.end} is not after start {self.start}"
        midnight = self.start_time.replace(hour=0, minute=0)
        if self.partitions == "daily" and self.start_time != midnight:
            return f"start {self.start} has a time of day, but partitions are daily"
        return None

    @property
    def start_time(self) -> datetime:
        """The start of the first partition, without a time zone."""
        return datetime.fromisoformat(str(self.start))

    @property
    def end_time(self) -> datetime:
        """The end of the last partition, without a time zone."""
        return datetime.fromisoformat(str(self.end))
