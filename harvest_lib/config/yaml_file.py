"""Configuration files: goharvest's `reaper.yaml`, or its `harvest:` part alone.

Promises
- A file that goharvest's reaper reads is read here with the same meaning; where that is not possible it is refused.
- Every error names the file, the line and the field, never a value; all problems of a file are reported together.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.config.data_source import DataSource, complaint
from harvest_lib.config.durations import BARE_NUMBER, SPELLING
from harvest_lib.config.environment import environment_values
from harvest_lib.config.kafka_settings import canonical, is_secret
from harvest_lib.config.limits import Limits
from harvest_lib.config.model import HarvestConfig, named, paths
from harvest_lib.config.problems import Origins, Problem
from harvest_lib.config.spelling import goharvest_name, goharvest_names, unknown
from harvest_lib.config.yaml_reader import NULL, Place, YamlReader, compose, line_of
from harvest_lib.errors import ConfigError

LOGGING_LEVELS = {
    "all": "debug",
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "off": "critical",
    "": "debug",
}
"""goharvest's levels and the nearest of Python's. An empty one is debug there."""

_MAPPINGS = ("base_kafka_config", "producer_kafka_config", "limits")
_NAMES_IN_KAFKA = {"client.id", "client.rack", "sasl.username"}
_TEXTS = ("leader_group_id", "leader_topic", "data_source", "outbox_table", "name", "leadership", "delivery", "parking")
_DEFAULT_IF_EMPTY = ("leader_topic", "data_source", "outbox_table", "name")
"""Texts that have a default, which goharvest takes for an empty text too."""
_SCALARS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "value", "merge")}
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperFile:
    """Content of goharvest's `reaper.yaml`. `logging_level` is a level of Python's logging, in small letters."""

    harvest: HarvestConfig
    logging_level: str = "info"


def load(path: str | os.PathLike[str], *, file_first: bool = False, **arguments: Any) -> ReaperFile:
    """Read a file; environment variables go before it, and `arguments` (fields of HarvestConfig) before both.

    With `file_first` the file goes before the environment: a process may have several files, and has one environment.

    Raises ConfigError with all that is wrong; its `source`, `line` and `field` are those of the first problem.
    """
    contents = _Contents(Path(path))
    environment, variables = environment_values(os.environ, HarvestConfig.model_fields)
    given, misnamed = named(arguments)
    origins = Origins(
        file=str(path),
        lines=contents.lines,
        variables={path: name for path, name in variables.items() if not (file_first and path in contents.lines)},
        arguments=paths(given),
        problems=[*contents.problems, *misnamed],
    )
    below, above = (environment, contents.values) if file_first else (contents.values, environment)
    values = _merged(_merged(below, above), given)
    return ReaperFile(harvest=HarvestConfig(_origins=origins, **values), logging_level=contents.logging_level)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for name in _MAPPINGS:
        lower, upper = below.get(name), above.get(name)
        if isinstance(lower, Mapping) and isinstance(upper, Mapping):
            merged[name] = {**canonical(lower), **canonical(upper)}
    return merged


class _Contents:
    """A file's values by field name, the line of each, and the problems found before any value was checked."""

    def __init__(self, path: Path) -> None:
        root, loader = compose(path)
        self._reader = YamlReader(loader)
        self.values: dict[str, Any] = {}
        self.lines = self._reader.lines
        self.problems = self._reader.problems
        self.logging_level = "info"
        self.lines[()] = line_of(root)
        top = dict(self._reader.entries(root, ()))
        if not {"harvest", "logging"} & top.keys():
            self._harvest(top)
            return
        for key, node in top.items():
            if key == "harvest":
                self.lines[()] = line_of(node)
                self._harvest(dict(self._reader.entries(node, ())))
            elif key == "logging":
                self._logging(node)
            else:
                elsewhere = {name: f"harvest.{name}" for name in goharvest_names(HarvestConfig)}
                self._reader.note(unknown(key, ("harvest", "logging"), elsewhere=elsewhere), node)

    def _harvest(self, entries: dict[str, yaml.Node]) -> None:
        known = goharvest_names(HarvestConfig)
        elsewhere = {name: f"limits.{name}" for name in goharvest_names(Limits)}
        for name, node in self._known(entries, known, (), elsewhere):
            self.lines[name,] = line_of(node)
            if name in _DEFAULT_IF_EMPTY and isinstance(node, yaml.ScalarNode) and not node.value:
                continue
            if name in _MAPPINGS:
                inner = dict(self._reader.entries(node, (name,)))
                if isinstance(node, yaml.MappingNode):
                    self.values[name] = self._limits(inner) if name == "limits" else self._kafka(inner, name)
            elif name == "columns" and isinstance(node, yaml.MappingNode):
                self.values[name] = self._columns(node)
            elif name == "data_source" and isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
                self._data_source(node)
            else:
                self._value(self.values, (name,), node, as_text=name in _TEXTS)

    def _limits(self, entries: dict[str, yaml.Node]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, node in self._known(entries, goharvest_names(Limits), ("limits",), {}):
            self.lines["limits", name] = line_of(node)
            self._value(values, ("limits", name), node)
        return values

    def _kafka(self, entries: dict[str, yaml.Node], mapping: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, node in entries.items():
            self.lines[mapping, key] = line_of(node)
            # A password of digits is the digits, not the number (0123 would become 83).
            self._value(values, (mapping, key), node, as_text=is_secret(key) or key in _NAMES_IN_KAFKA)
            if node.tag == NULL:
                values[key] = None
        return values

    def _columns(self, node: yaml.MappingNode) -> dict[str, Any]:
        """Take the mapping as it is; the model checks it."""
        values: dict[str, Any] = {}
        for key, each in self._reader.entries(node, ("columns",)):
            path = ("columns", key)
            self.lines[path] = line_of(each)
            if isinstance(each, yaml.ScalarNode):
                self._value(values, path, each)
                continue
            found = self._reader.construct(each, path, remedy="write one entry a line, its texts in quotes")
            if found is not ...:
                values[key] = found
        return values

    def _data_source(self, node: yaml.ScalarNode) -> None:
        try:
            self.values["data_source"] = DataSource.parse(node.value, lib_pq_defaults=True)
        except ConfigError as error:
            self._reader.note(Problem(path=("data_source",), message=complaint(error), remedy=error.next_step), node)

    def _logging(self, node: yaml.Node) -> None:
        if node.tag == NULL:
            return
        for key, value in self._reader.entries(node, ("logging",)):
            if key != "level":
                self._reader.note(unknown(key, ("level",)).under("logging"), value)
            elif isinstance(value, yaml.ScalarNode) and value.tag != NULL and value.value.lower() in LOGGING_LEVELS:
                self.logging_level = LOGGING_LEVELS[value.value.lower()]
            elif value.tag != NULL:
                remedy = f"choose one of {', '.join(filter(None, LOGGING_LEVELS))}"
                self._reader.note(Problem(path=("logging", "level"), message="is not a level", remedy=remedy), value)

    def _known(
        self, entries: dict[str, yaml.Node], known: dict[str, str], prefix: Place, elsewhere: dict[str, str]
    ) -> Iterator[tuple[str, yaml.Node]]:
        """Yield the entries of known fields; a file is read in goharvest's spelling only."""
        seen: dict[str, str] = {}
        for key, node in entries.items():
            name = known.get(key)
            if name is None:
                pythonic = goharvest_name(key) if goharvest_name(key) in known else None
                problem = unknown(pythonic or key, known, elsewhere=elsewhere).under(*prefix)
                self._reader.note(replace(problem, written=".".join([*prefix, key])), node)
            elif name in seen:
                remedy = f"remove `{key}` or `{seen[name]}`: they mean the same"
                self._reader.note(Problem(path=(*prefix, name), message="is given twice", remedy=remedy), node)
            else:
                seen[name] = key
                yield name, node

    def _value(self, values: dict[str, Any], path: Place, node: yaml.Node, *, as_text: bool = False) -> None:
        name = path[-1]
        if node.tag == NULL:
            return
        if not isinstance(node, yaml.ScalarNode):
            values[name] = ()  # of no type that a field has, so it is refused with the rest
        elif as_text and node.tag in _SCALARS:
            values[name] = node.value
        elif (found := self._reader.construct(node, path)) is not ...:
            if found and node.tag in _NUMBERS and name.endswith("_seconds") and not path[0].endswith("_kafka_config"):
                self._reader.note(Problem(path=path, message=BARE_NUMBER, remedy=SPELLING), node)
            else:
                values[name] = found
