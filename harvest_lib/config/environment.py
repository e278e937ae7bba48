"""Settings from environment variables.

A variable is `HARVEST_` and the field's Python name in capitals. Two underscores address a field of `limits`:

    HARVEST_LEADER_GROUP_ID=billing
    HARVEST_LIMITS__MARK_QUERY_RECORDS=500
    HARVEST_LIMITS__HEARTBEAT_TIMEOUT_SECONDS=5      or 5s, or 500ms
    HARVEST_BASE_KAFKA_CONFIG={"security.protocol": "sasl_ssl"}
    HARVEST_COLUMNS={"id": "position"}
    HARVEST_BOOTSTRAP_SERVERS=kafka:9092             into the base Kafka config
    HARVEST_DATA_SOURCE=host=db dbname=shop          or HARVEST_DSN

An empty variable counts as not set. A variable that names no field is ignored here, because other programs use
variables with this prefix too; but an unknown name after `HARVEST_LIMITS__` is an error. `harvest run` refuses, and
`harvest check` reports, what `unknown_variables` returns.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from harvest_lib.config.kafka_settings import canonical
from harvest_lib.config.limits import Limits
from harvest_lib.config.problems import Place, Problem
from harvest_lib.config.spelling import goharvest_names
from harvest_lib.errors import ConfigError

PREFIX = "HARVEST_"
_LIMITS_PREFIX = PREFIX + "LIMITS__"
_SHORT: dict[str, Place] = {
    PREFIX + "BOOTSTRAP_SERVERS": ("base_kafka_config", "bootstrap.servers"),
    PREFIX + "DSN": ("data_source",),
}
_NO_SETTINGS = frozenset(
    {
        *("HARVEST_ALIVE_FILE", "HARVEST_CONFIG", "HARVEST_IMPL", "HARVEST_LISTEN"),  # commands and the hand-over
        *("HARVEST_AUDIT", "HARVEST_CACHE", "HARVEST_HOME", "HARVEST_MAVEN_URL"),  # the clone and the local stack
        *("HARVEST_KAFKA_SETTINGS", "HARVEST_SPARK_JARS"),  # the examples, Spark
        *("HARVEST_DAGSTER_JOB", "HARVEST_ORDERS_DATABASE", "HARVEST_ORDERS_HOST"),  # the DAGs of `airflow_dags`
        *("HARVEST_SMOKE_TOPIC", "HARVEST_TOPIC"),
        *("HARVEST_PIPES_STDERR", "HARVEST_PIPES_SUCCESS_CODES"),  # Dagster's runs
    }
)
"""Variables of this project that are not settings of a harvester."""
_OF_KUBERNETES = re.compile(
    r"HARVEST_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in each pod for a service whose name begins with `harvest`."""
_MAPPINGS = ("base_kafka_config", "producer_kafka_config", "limits", "columns")


def environment_values(environ: Mapping[str, str], fields: Collection[str]) -> tuple[dict[str, Any], dict[Place, str]]:
    """Return two mappings: the values that variables set, by field name, and the variable's name by path of the value.

    Raises ConfigError for text that is not a JSON object where that is required, and if HARVEST_DATA_SOURCE and
    HARVEST_DSN differ.
    """
    values: dict[str, Any] = {}
    variables: dict[Place, str] = {}
    for variable, text in sorted(environ.items()):  # HARVEST_LIMITS comes first: HARVEST_LIMITS__… override its entries
        path = _path(variable, fields)
        if not path or not text:
            continue
        field = path[0]
        if path == ("data_source",) and values.get(field, text) != text:
            raise ConfigError(
                f"{PREFIX}DATA_SOURCE and {PREFIX}DSN are both set, and differ",
                field="data_source",
                source=f"environment variable {PREFIX}DSN",
                next_step="unset one of them; they mean the same",
            )
        if len(path) > 1:
            values.setdefault(field, {})[path[1]] = _plain(path[1], text)
        elif field in _MAPPINGS:
            values[field] = _json_mapping(field, text, variable)
            variables |= {(field, key): variable for key in values[field]}
        else:
            values[field] = _plain(field, text)
        variables[path] = variable
    return values, variables


def unknown_variables(environ: Mapping[str, str], fields: Collection[str]) -> list[Problem]:
    """Return a problem for each variable `HARVEST_...` that is neither a setting nor another variable of this
    project."""
    settings = {PREFIX + name.upper() for name in fields} | _SHORT.keys()
    return [
        Problem(path=(variable,), message="is not a setting", remedy=_remedy(variable, settings | _NO_SETTINGS))
        for variable, text in sorted(environ.items())
        if variable.startswith(PREFIX) and text and not _path(variable, fields)
        if variable not in _NO_SETTINGS and not _OF_KUBERNETES.fullmatch(variable)
    ]


def _remedy(variable: str, known: Collection[str]) -> str:
    names = {name.removeprefix(PREFIX).replace("_", ""): name for name in known}
    near = difflib.get_close_matches(variable.removeprefix(PREFIX).replace("_", "").upper(), names, n=1)
    wrong = f"unset {variable}, or give it a name without {PREFIX}"
    return f"did you mean {names[near[0]]}? If not, {wrong}" if near else wrong


def _path(variable: str, fields: Collection[str]) -> Place:
    """Return the path of the field that a variable sets; empty if the variable names no field."""
    if variable.startswith(_LIMITS_PREFIX):
        return ("limits", variable.removeprefix(_LIMITS_PREFIX).lower())
    field = variable.removeprefix(PREFIX).lower()
    is_field = field in fields and variable == PREFIX + field.upper()
    return (field,) if is_field else _SHORT.get(variable, ())


def _plain(field: str, text: str) -> object:
    """Convert a bare number to seconds if the field's name ends in `_seconds`; leave other text to the model."""
    if field.endswith("_seconds"):
        try:
            return float(text)
        except ValueError:
            pass
    return text


def _json_mapping(field: str, text: str, variable: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # ValueError also for a number with more digits than Python can parse
        value = None  # the error is raised below, because this exception contains the text
    if not isinstance(value, dict):
        raise ConfigError(
            f"{variable} is not a JSON object",
            source=f"environment variable {variable}",
            next_step='write {"name": "value", …}',
        )
    if field == "limits":
        spellings = goharvest_names(Limits)
        return {spellings.get(key) or key: each for key, each in value.items()}
    return value if field == "columns" else canonical(value)
