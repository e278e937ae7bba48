"""Settings from environment variables.

`HARVEST_` and the field's Python name in capitals; two underscores lead into `limits`:

    HARVEST_LEADER_GROUP_ID=billing
    HARVEST_LIMITS__MARK_QUERY_RECORDS=500
    HARVEST_LIMITS__HEARTBEAT_TIMEOUT_SECONDS=5      or 5s, or 500ms
    HARVEST_BASE_KAFKA_CONFIG={"security.protocol": "sasl_ssl"}
    HARVEST_COLUMNS={"id": "position"}
    HARVEST_BOOTSTRAP_SERVERS=kafka:9092             into the base Kafka config
    HARVEST_DATA_SOURCE=host=db dbname=shop          or HARVEST_DSN

An empty variable is one that is not set. Variables that no field has are left alone: other programs and our own command
line have theirs. Only below `HARVEST_LIMITS__` an unknown name is an error.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harvest_lib.config.kafka_settings import canonical
from harvest_lib.config.limits import Limits
from harvest_lib.config.spelling import goharvest_names
from harvest_lib.errors import ConfigError

PREFIX = "HARVEST_"
_LIMITS_PREFIX = PREFIX + "LIMITS__"
_KAFKA = {"base_kafka_config", "producer_kafka_config"}

Variables = dict[tuple[str, ...], str]


def environment_values(environ: Mapping[str, str], fields: Iterable[str]) -> tuple[dict[str, Any], Variables]:
    """Return the values that variables give to fields, and the variable behind each path of field names.

    Raises ConfigError for text that is not JSON where JSON is asked for, and for two variables that contradict.
    """
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and text}
    values: dict[str, Any] = {}
    variables: Variables = {}
    spellings = goharvest_names(Limits)
    for field in fields:
        variable = PREFIX + field.upper()
        if variable not in given:
            continue
        variables[field,] = variable
        if field in _KAFKA or field == "limits":
            mapping = _json_mapping(given[variable], variable)
            values[field] = (
                {spellings.get(key, key): each for key, each in mapping.items()} if field == "limits" else mapping
            )
            variables |= {(field, key): variable for key in values[field]}
        elif field == "columns":
            values[field] = _json_mapping(given[variable], variable, letters_matter=True)
        else:
            values[field] = _plain(field, given[variable])
    for variable, text in given.items():
        if variable.startswith(_LIMITS_PREFIX):
            field = variable.removeprefix(_LIMITS_PREFIX).lower()
            values.setdefault("limits", {})[field] = _plain(field, text)
            variables["limits", field] = variable
    if servers := given.get(PREFIX + "BOOTSTRAP_SERVERS"):
        values.setdefault("base_kafka_config", {})["bootstrap.servers"] = servers
        variables["base_kafka_config", "bootstrap.servers"] = PREFIX + "BOOTSTRAP_SERVERS"
    if dsn := given.get(PREFIX + "DSN"):
        if values.setdefault("data_source", dsn) != dsn:
            raise ConfigError(
                f"{PREFIX}DATA_SOURCE and {PREFIX}DSN are both set, and differ",
                field="data_source",
                source=f"environment variable {PREFIX}DSN",
                next_step="unset one of them; they mean the same",
            )
        variables.setdefault(("data_source",), PREFIX + "DSN")
    return values, variables


def _plain(field: str, text: str) -> object:
    """Read a number as seconds where the variable's name says seconds; the rest is for the model to read."""
    if field.endswith("_seconds"):
        try:
            return float(text)
        except ValueError:
            pass
    return text


def _json_mapping(text: str, variable: str, *, letters_matter: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # JSONDecodeError, and a number of more digits than Python reads
        value = None  # its error carries the text
    if not isinstance(value, dict):
        raise ConfigError(
            f"{variable} is not a JSON object",
            source=f"environment variable {variable}",
            next_step='write {"name": "value", …}',
        )
    return value if letters_matter else canonical(value)
