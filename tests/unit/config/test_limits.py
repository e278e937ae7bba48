"""Every limit of goharvest: its default, its name in a file, its range, and how limits bind each other."""

from datetime import timedelta

import pytest

from harvest_lib.config import Limits
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

DEFAULTS = {
    "io_error_backoff_seconds": ("ioErrorBackoff", 0.5),
    "poll_duration_seconds": ("pollDuration", 0.001),
    "min_poll_interval_seconds": ("minPollInterval", 0.1),
    "heartbeat_timeout_seconds": ("heartbeatTimeout", 5.0),
    "max_poll_interval_seconds": ("maxPollInterval", 2.5),
    "queue_timeout_seconds": ("queueTimeout", 30.0),
    "drain_interval_seconds": ("drainInterval", 2.5),
    "mark_backoff_seconds": ("markBackoff", 0.01),
    "max_in_flight_records": ("maxInFlightRecords", None),
    "send_concurrency": ("sendConcurrency", 8),
    "send_buffer": ("sendBuffer", 10),
    "mark_query_records": ("markQueryRecords", None),
    "min_metrics_interval_seconds": ("minMetricsInterval", 5.0),
}
MAY_BE_ZERO = {"io_error_backoff_seconds", "mark_backoff_seconds", "send_buffer", "min_metrics_interval_seconds"}


def test_the_defaults_are_goharvests_but_for_bounds_that_batches_have_anyway() -> None:
    assert Limits().model_dump() == {name: default for name, (_, default) in DEFAULTS.items()}


def test_none_means_the_default() -> None:
    assert Limits(heartbeat_timeout_seconds=None, send_buffer=None) == Limits()


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_is_set_by_either_name(name: str) -> None:
    alias, _ = DEFAULTS[name]
    value: object = 3 if not name.endswith("_seconds") else "1.25s"
    expected = 3 if not name.endswith("_seconds") else 1.25
    assert getattr(Limits(**{name: value}), name) == expected
    assert getattr(Limits(**{alias: value}), name) == expected
    assert Limits(**{name: value}).model_dump(by_alias=True)[alias] == expected


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_has_its_least_value(name: str) -> None:
    in_seconds = name.endswith("_seconds")
    if name in MAY_BE_ZERO:
        assert getattr(Limits(**{name: "0" if in_seconds else 0}), name) == 0
        too_little: object = "-1ns" if in_seconds else -1
    else:
        least: object = "1ms" if in_seconds else 1
        kept = {} if name != "heartbeat_timeout_seconds" else {"min_poll_interval_seconds": 0.0}
        if name in {"poll_duration_seconds", "min_poll_interval_seconds", "queue_timeout_seconds"}:
            assert getattr(Limits(**{name: least}, **kept), name) == 0.001
        too_little = "999us" if in_seconds else 0
    with pytest.raises(ConfigError) as refused:
        Limits(**{name: too_little})
    assert refused.value.field == name
    assert "out of range" in str(refused.value)


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("value", [True, "many", [1], {}])
def test_each_refuses_what_is_of_another_type(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        Limits(**{name: value})
    assert refused.value.field == name


def test_durations_from_python_may_be_timedeltas() -> None:
    assert Limits(queue_timeout_seconds=timedelta(minutes=2)).queue_timeout_seconds == 120


def test_the_documentations_other_name_is_understood() -> None:
    assert Limits(receiveDeadline="8s").heartbeat_timeout_seconds == 8


def test_two_names_for_one_limit_are_refused() -> None:
    with pytest.raises(ConfigError, match="given twice") as refused:
        Limits(receiveDeadline="8s", heartbeatTimeout="8s")
    assert refused.value.field == "heartbeat_timeout_seconds"


def test_derived_defaults_follow_what_they_derive_from() -> None:
    assert Limits(heartbeat_timeout_seconds=8).max_poll_interval_seconds == 4
    assert Limits(heartbeat_timeout_seconds=8).drain_interval_seconds == 4
    assert Limits(queue_timeout_seconds=1).drain_interval_seconds == 1
    assert Limits(max_poll_interval_seconds=1).drain_interval_seconds == 1


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        (
            {"minPollInterval": "2s", "maxPollInterval": "1s"},
            "max_poll_interval_seconds",
            "less than `minPollInterval`",
        ),
        ({"minPollInterval": "3s"}, "max_poll_interval_seconds", "less than `minPollInterval`"),
        ({"maxPollInterval": "5s"}, "max_poll_interval_seconds", "fence itself"),
        ({"pollDuration": "5s"}, "poll_duration_seconds", "outlast"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(values: dict[str, str], field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        Limits(**values)
    assert refused.value.field == field


def test_limits_at_the_edge_of_each_other_are_accepted() -> None:
    Limits(minPollInterval="1s", maxPollInterval="1s")
    Limits(maxPollInterval="4999ms", pollDuration="4999ms")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        Limits(markQueryRecord=3, sendBuffer=-1, pollDuration="soon")
    text = str(refused.value)
    assert "3 settings are wrong" in text
    assert "did you mean `mark_query_records`?" in text
    assert "`send_buffer` is out of range: it must be at least 0" in text
    assert "`poll_duration_seconds` is not a duration" in text
