"""Configuration files: goharvest's `reaper.yaml`, or its `harvest:` part alone.

Promises
- A file that goharvest's reaper reads is read here with the same meaning; where that is not possible it is refused.
- Every error names the file, the line and the field, never a value; all problems of a file are reported together.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from harvest_lib.config.yaml_nodes import NULL, compose, line_of, not_a_mapping, read_text
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
_TEXTS = ("leader_group_id", "leader_topic", "data_source", "outbox_table", "name", "leadership", "delivery", "parking")
_DEFAULT_IF_EMPTY = ("leader_topic", "data_source", "outbox_table", "name")
"""Texts that have a default, which goharvest takes for an empty text too."""
_NO_VALUE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What yaml raises for text that is not of its tag (`!!bool maybe`, `!!int ''`, `!!timestamp x`), or too deep."""
_MERGE = "tag:yaml.org,2002:merge"
_SCALARS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "value", "merge")}
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperFile:
    """What goharvest's `reaper.yaml` holds. `logging_level` is a level of Python's logging, in small letters."""

    harvest: HarvestConfig
    logging_level: str = "info"


def load(path: str | os.PathLike[str], *, file_first: bool = False, **arguments: Any) -> ReaperFile:
    """Read a file; environment variables go before it, and `arguments` (fields of HarvestConfig) before both.

    With `file_first` the file goes before the environment: a process may have several files, and has one environment.

    Raises ConfigError with all that is wrong; its `source`, `line` and `field` are those of the first problem.
    """
    contents = _Contents.of(read_text(Path(path)), str(path))
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


@dataclass(slots=True)
class _Contents:
    """A file's values by field name, the line of each, and what was wrong before any value was checked."""

    loader: yaml.SafeLoader
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    logging_level: str = "info"

    @classmethod
    def of(cls, text: str, source: str) -> "_Contents":
        root, loader = compose(text, source)
        contents = cls(loader)
        contents.lines[()] = line_of(root)
        top = dict(contents._entries(root, ()))
        if not {"harvest", "logging"} & top.keys():
            contents._harvest(top)
            return contents
        for key, node in top.items():
            if key == "harvest":
                contents.lines[()] = line_of(node)
                contents._harvest(dict(contents._entries(node, ())))
            elif key == "logging":
                contents._logging(node)
            else:
                elsewhere = {name: f"harvest.{name}" for name in goharvest_names(HarvestConfig)}
                contents._note(unknown(key, ("harvest", "logging"), elsewhere=elsewhere), node)
        return contents

    def _harvest(self, entries: dict[str, yaml.Node]) -> None:
        known = goharvest_names(HarvestConfig)
        elsewhere = {name: f"limits.{name}" for name in goharvest_names(Limits)}
        for name, node in self._known(entries, known, (), elsewhere):
            self.lines[name,] = line_of(node)
            if name in _DEFAULT_IF_EMPTY and isinstance(node, yaml.ScalarNode) and not node.value:
                continue
            if name in _MAPPINGS:
                if node.tag == NULL:
                    continue
                if not isinstance(node, yaml.MappingNode):
                    self._note(not_a_mapping((name,)), node)
                    continue
                inner = dict(self._entries(node, (name,)))
                self.values[name] = self._limits(inner) if name == "limits" else self._kafka(inner, name)
            elif name == "columns" and isinstance(node, yaml.MappingNode):
                self._nested(name, node)
            elif name == "data_source" and isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
                self._data_source(node)
            else:
                self._value(self.values, name, (name,), node, as_text=name in _TEXTS)
                if name.endswith("_seconds"):
                    self._refuse_bare_number(self.values, name, (name,), node)

    def _limits(self, entries: dict[str, yaml.Node]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, node in self._known(entries, goharvest_names(Limits), ("limits",), {}):
            path = ("limits", name)
            self.lines[path] = line_of(node)
            self._value(values, name, path, node)
            if name.endswith("_seconds"):
                self._refuse_bare_number(values, name, path, node)
        return values

    def _kafka(self, entries: dict[str, yaml.Node], mapping: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, node in entries.items():
            self.lines[mapping, key] = line_of(node)
            # A password of digits is the digits, not the number (0123 would become 83).
            self._value(values, key, (mapping, key), node, as_text=is_secret(key), null=True)
        return values

    def _nested(self, name: str, node: yaml.MappingNode) -> None:
        """Take a mapping as it is; the model says what is wrong in it."""
        values: dict[str, Any] = {}
        for key, each in self._entries(node, (name,)):
            self.lines[name, key] = line_of(each)
            if isinstance(each, yaml.ScalarNode):
                self._value(values, key, (name, key), each)
                continue
            try:
                values[key] = self.loader.construct_object(each, deep=True)
            except _NO_VALUE:
                remedy = "write one entry a line, its texts in quotes"
                self._note(Problem(path=(name, key), message="is not what its tag or form says", remedy=remedy), each)
        self.values[name] = values

    def _data_source(self, node: yaml.ScalarNode) -> None:
        try:
            self.values["data_source"] = DataSource.parse(node.value, lib_pq_defaults=True)
        except ConfigError as error:
            self._note(Problem(path=("data_source",), message=complaint(error), remedy=error.next_step), node)

    def _logging(self, node: yaml.Node) -> None:
        if node.tag == NULL:
            return
        for key, value in self._entries(node, ("logging",)):
            if key != "level":
                self._note(unknown(key, ("level",)).under("logging"), value)
            elif isinstance(value, yaml.ScalarNode) and value.tag != NULL and value.value.lower() in LOGGING_LEVELS:
                self.logging_level = LOGGING_LEVELS[value.value.lower()]
            elif value.tag != NULL:
                remedy = f"choose one of {', '.join(filter(None, LOGGING_LEVELS))}"
                self._note(Problem(path=("logging", "level"), message="is not a level", remedy=remedy), value)

    def _known(
        self, entries: dict[str, yaml.Node], known: dict[str, str], prefix: tuple[str, ...], elsewhere: dict[str, str]
    ) -> Iterator[tuple[str, yaml.Node]]:
        """Pass on what a field has; a file is read in goharvest's spelling only."""
        seen: dict[str, str] = {}
        for key, node in entries.items():
            name = known.get(key)
            if name is None:
                pythonic = goharvest_name(key) if goharvest_name(key) in known else None
                problem = unknown(pythonic or key, known, elsewhere=elsewhere).under(*prefix)
                self._note(replace(problem, written=".".join([*prefix, key])), node)
            elif name in seen:
                remedy = f"remove `{key}` or `{seen[name]}`: they mean the same"
                self._note(Problem(path=(*prefix, name), message="is given twice", remedy=remedy), node)
            else:
                seen[name] = key
                yield name, node

    def _entries(self, node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[str, yaml.Node]]:
        """Pass on the entries of a mapping, merged ones included; the value's mark becomes the key's."""
        if node.tag == NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            self._note(not_a_mapping(path), node)
            return
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key_node.tag != _MERGE:
                if key in seen:
                    remedy = f"keep one; the first is in line {seen[key]}"
                    self._note(Problem(path=(*path, key), message="is given twice", remedy=remedy), key_node)
                seen.setdefault(key, line_of(key_node))
        try:
            self.loader.flatten_mapping(node)
        except yaml.YAMLError:
            self._note(Problem(path=path, message="has a `<<` that cannot be merged", remedy="write it out"), node)
            return
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == "tag:yaml.org,2002:str":
                marked = copy.copy(value_node)  # an alias shares its node with the anchor
                marked.start_mark = key_node.start_mark
                yield key_node.value, marked
            else:
                problem = Problem(path=path, message="has a key that is not text", remedy="put the key in quotes")
                self._note(problem, key_node)

    def _value(
        self,
        values: dict[str, Any],
        name: str,
        path: tuple[str, ...],
        node: yaml.Node,
        *,
        as_text: bool = False,
        null: bool = False,
    ) -> None:
        if node.tag == NULL:
            if null:
                values[name] = None
        elif not isinstance(node, yaml.ScalarNode):
            values[name] = ()  # of no type that a field has, so it is refused with the rest
        elif as_text and node.tag in _SCALARS:
            values[name] = node.value
        else:
            try:
                values[name] = self.loader.construct_object(node)
            except _NO_VALUE:
                self._note(
                    Problem(path=path, message="is not what its tag or form says", remedy="put it in quotes"), node
                )

    def _refuse_bare_number(self, values: dict[str, Any], name: str, path: tuple[str, ...], node: yaml.Node) -> None:
        if node.tag in _NUMBERS and values.get(name):
            del values[name]
            self._note(Problem(path=path, message=BARE_NUMBER, remedy=SPELLING), node)

    def _note(self, problem: Problem, node: yaml.Node) -> None:
        self.problems.append(replace(problem, line=line_of(node)))
