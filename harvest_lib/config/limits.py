"""goharvest's limits: durations, counts and rates. Each is checked, and their combination too."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from harvest_lib.config.durations import SPELLING, format_duration, to_seconds
from harvest_lib.config.problems import Problem, custom_error, raise_in_validator
from harvest_lib.config.settings import Settings
from harvest_lib.config.spelling import goharvest_name

_SHORTEST_SECONDS = 0.001

_WITHOUT_EFFECT = ("send_concurrency", "send_buffer")
"""Limits of goharvest that have no effect here, because each shard has a single producer, and no queue except the
producer's."""


def _seconds(value: object) -> float:
    try:
        return to_seconds(value)
    except ValueError as error:
        raise custom_error(str(error), SPELLING) from None


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):  # which pydantic would take for 0 or 1
        raise PydanticCustomError("int_type", "not a whole number")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A number of seconds; a timedelta and Go's spelling (`1m30s`) are accepted too."""
Count = Annotated[int, BeforeValidator(_no_truth_value)]


class Limits(Settings):
    """Limits of the harvest.

    In a file a duration has a unit (`pollDuration: 1ms`). In Python it is a number of seconds, a timedelta, or text
    with a unit. Raises ConfigError with all problems.
    """

    io_error_backoff_seconds: Seconds = Field(default=0.5, ge=0)
    """`ioErrorBackoff`: pause after an I/O error before the next attempt. Default 500ms."""
    poll_duration_seconds: Seconds = Field(default=0.001, ge=_SHORTEST_SECONDS)
    """`pollDuration`: maximum wait of a single poll of the leader topic. Default 1ms."""
    min_poll_interval_seconds: Seconds = Field(default=0.1, ge=_SHORTEST_SECONDS)
    """`minPollInterval`: minimum time between two polls of the leader topic. Default 100ms."""
    heartbeat_timeout_seconds: Seconds = Field(default=5.0, ge=_SHORTEST_SECONDS)
    """`heartbeatTimeout`, also `receiveDeadline`: a leader that receives none of its own heartbeats for this time
    fences itself. Default 5s."""
    max_poll_interval_seconds: Seconds = Field(
        default_factory=lambda checked: checked["heartbeat_timeout_seconds"] / 2, ge=_SHORTEST_SECONDS
    )
    """`maxPollInterval`: limits the default of `drainInterval`. It has no other effect, because the election has a
    thread of its own. Default half of `heartbeatTimeout`."""
    queue_timeout_seconds: Seconds = Field(default=30.0, ge=_SHORTEST_SECONDS)
    """`queueTimeout`: limits the default of `drainInterval`. It has no other effect, because marked records do not
    queue for a sender. Default 30s."""
    drain_interval_seconds: Seconds = Field(
        default_factory=lambda checked: min(checked["max_poll_interval_seconds"], checked["queue_timeout_seconds"]),
        ge=_SHORTEST_SECONDS,
    )
    """`drainInterval`: maximum wait for acknowledgements of a sent batch when the harvester stops or its term is
    revoked. Default: the smaller of `maxPollInterval` and `queueTimeout`."""
    mark_backoff_seconds: Seconds = Field(default=0.01, ge=0)
    """`markBackoff`: pause after a statement that marked no record. Default 10ms."""
    max_in_flight_records: Count | None = Field(default=None, ge=1)
    """`maxInFlightRecords`: maximum number of records of this process that are sent and not yet acknowledged. The
    shards of the process share it equally. Default: no such limit; the size of batches is bounded in any case."""
    send_concurrency: Count = Field(default=8, ge=1)
    """`sendConcurrency`: without effect. Default 8."""
    send_buffer: Count = Field(default=10, ge=0)
    """`sendBuffer`: without effect. Default 10."""
    mark_query_records: Count | None = Field(default=None, ge=1)
    """`markQueryRecords`: maximum number of rows that a statement marks, or reads if the source does not mark. Default:
    no such limit; a page has up to 2,000 rows."""
    min_metrics_interval_seconds: Seconds = Field(default=5.0, ge=0)
    """`minMetricsInterval`: minimum time between two MeterRead events. Default 5s."""

    @classmethod
    def checked(cls, values: object) -> object:
        """Construct Limits inside another model's validator. Problems raise pydantic's ValidationError instead of
        ConfigError, so that the other model adds them to its own problems. A value that is not a mapping is returned
        unchanged."""
        if not isinstance(values, Mapping):
            return values
        limits = cls.__new__(cls)
        BaseModel.__init__(limits, **values)
        return limits

    @property
    def without_effect(self) -> list[str]:
        """Return the limits, in goharvest's spelling, that were set but have no effect."""
        return [goharvest_name(name) for name in _WITHOUT_EFFECT if name in self.model_fields_set]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        raise_in_validator(type(self).__name__, self._disagreements())
        return self

    def _disagreements(self) -> Iterator[Problem]:
        longest, shortest = self.max_poll_interval_seconds, self.min_poll_interval_seconds
        deadline = self.heartbeat_timeout_seconds
        if longest < shortest:
            yield Problem(
                path=("max_poll_interval_seconds",),
                message=f"is {format_duration(longest)}, less than `minPollInterval` ({format_duration(shortest)})",
                remedy="raise `maxPollInterval` (by default half of `heartbeatTimeout`) or lower `minPollInterval`",
            )
        if longest >= deadline:
            yield Problem(
                path=("max_poll_interval_seconds",),
                message=f"is {format_duration(longest)}, so that a healthy leader would miss its `heartbeatTimeout` "
                f"({format_duration(deadline)}) and fence itself",
                remedy="set it below `heartbeatTimeout`, or leave it out (half of `heartbeatTimeout`)",
            )
        if self.poll_duration_seconds >= deadline:
            yield Problem(
                path=("poll_duration_seconds",),
                message=f"is {format_duration(self.poll_duration_seconds)}, so that a poll could outlast "
                f"`heartbeatTimeout` ({format_duration(deadline)}) and a leader notice too late",
                remedy="set it below `heartbeatTimeout`",
            )


Policy = Literal["hold_key", "skip", "stop"]
