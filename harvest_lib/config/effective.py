"""The effective settings of a configuration, each with its origin: a line of the file, a variable, or the default."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harvest_lib.config.environment import environment_values
from harvest_lib.config.kafka_settings import canonical
from harvest_lib.config.limits import Limits
from harvest_lib.config.model import FileContents, HarvestConfig
from harvest_lib.config.problems import Place
from harvest_lib.config.reading import configured
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.config.yaml_file import read

_KAFKA = ("base_kafka_config", "producer_kafka_config")
_LEVEL = ("logging", "level")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting in the spelling of a file, its value without secrets, and its origin. `file` and `line` are set if the
    value is from the file, `variable` if it is from a variable."""

    setting: str
    value: Any
    file: str = ""
    line: int | None = None
    variable: str = ""

    @property
    def origin(self) -> str:
        """The origin as text."""
        if self.variable:
            return f"variable {self.variable}"
        return f"{self.file}, line {self.line}" if self.file else "default"


def effective_settings(path: str | os.PathLike[str] | None) -> list[EffectiveSetting]:
    """Return all settings of the configuration in a file, or in variables alone if `path` is None. Raises ConfigError
    if the configuration is invalid."""
    contents, level = read(path) if path else (FileContents(), "info")
    config = HarvestConfig(contents) if path else configured()
    variables = environment_values(os.environ, HarvestConfig.model_fields)[1]
    found = [_setting(place, name, value, contents, variables) for place, name, value in _values(config)]
    return [*found, _setting(_LEVEL, "logging.level", level, contents, {})]


def _values(config: HarvestConfig) -> Iterator[tuple[Place, str, Any]]:
    """Yield the path, the name in a file and the value of each setting. A mapping yields its entries."""
    shown = config.redacted()
    for field in HarvestConfig.model_fields:
        name = goharvest_name(field)
        value: Any = shown[name]
        if field == "limits":
            for limit in Limits.model_fields:
                yield ("limits", limit), f"limits.{goharvest_name(limit)}", value[goharvest_name(limit)]
        elif field in _KAFKA:
            for key, each in value.items():
                yield (field, key), f"{name}.{key}", each
        else:
            yield (field,), name, value


def _setting(
    place: Place, name: str, value: Any, contents: FileContents, variables: Mapping[Place, str]
) -> EffectiveSetting:
    if place in variables:
        return EffectiveSetting(setting=name, value=value, variable=variables[place])
    lines = {(*path[:-1], *canonical({path[-1]: None})): line for path, line in contents.lines.items() if path}
    if place in lines and (place == _LEVEL or _is_given(contents.values, place)):
        return EffectiveSetting(setting=name, value=value, file=contents.path, line=lines[place])
    if place == ("leadership",) and not contents.path:
        value = HarvestConfig.model_fields["leadership"].default  # `configured` sets it for a process without a pool
    return EffectiveSetting(setting=name, value=value)


def _is_given(values: Mapping[str, Any], place: Place) -> bool:
    """Return True if the file gives the value. It has a line, but no value, for a field that is left empty."""
    field, *key = place
    given = values.get(field)
    return given is not None and (not key or key[0] in canonical(given))
