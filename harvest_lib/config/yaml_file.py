"""Configuration files: goharvest's `reaper.yaml`, or only the contents of its `harvest:` section.

Promises
- A file that goharvest's reaper accepts has the same meaning here. If that is not possible, the file is refused.
- Every error names the file, the line and the field, never a value; all problems of a file are reported together.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.config.data_source import DataSource, complaint
from harvest_lib.config.durations import BARE_NUMBER, SPELLING
from harvest_lib.config.kafka_settings import is_secret
from harvest_lib.config.limits import Limits
from harvest_lib.config.model import FileContents, HarvestConfig
from harvest_lib.config.problems import Place, Problem, unknown
from harvest_lib.config.spelling import goharvest_names
from harvest_lib.config.yaml_reader import NULL, YamlReader, line_of
from harvest_lib.errors import ConfigError
from harvest_lib.process.logging_levels import NAMED_LEVELS, python_level

_NAMES = {(): goharvest_names(HarvestConfig), ("limits",): goharvest_names(Limits)}
"""Field names by their spelling in a file, for the top of the configuration and for the mapping `limits`."""
_KAFKA = ("base_kafka_config", "producer_kafka_config")
_MAPPINGS = {*_NAMES, *((name,) for name in _KAFKA)}
_NAMES_IN_KAFKA = {"client.id", "client.rack", "sasl.username"}
_TEXTS = ("leader_group_id", "leader_topic", "data_source", "outbox_table", "name", "leadership", "delivery", "parking")
_DEFAULT_IF_EMPTY = ("leader_topic", "data_source", "outbox_table", "name")
"""Text fields whose default also replaces an empty text, as in goharvest."""
_SCALARS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "value", "merge")}
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperFile:
    """Contents of goharvest's `reaper.yaml`. `logging_level` is a level of Python's logging, in lower case."""

    harvest: HarvestConfig
    logging_level: str = "info"


def load(path: str | os.PathLike[str], *, file_first: bool = False, **arguments: Any) -> ReaperFile:
    """Load a file. Environment variables override the file, and `arguments` (fields of HarvestConfig) override both.

    With `file_first` the file overrides the environment, for a process that loads several files.

    Raises ConfigError with all problems; its `source`, `line` and `field` belong to the first problem.
    """
    contents, level = read(path)
    return ReaperFile(harvest=HarvestConfig(contents, _file_first=file_first, **arguments), logging_level=level)


def read(path: str | os.PathLike[str]) -> tuple[FileContents, str]:
    """Return the unchecked contents of a file, and the level of its `logging:` section."""
    reader = _Reader(Path(path), needed="`leaderGroupID`")
    values = reader.harvest()
    contents = FileContents(path=str(path), values=values, lines=reader.lines, problems=reader.problems)
    return contents, reader.logging_level


class _Reader(YamlReader):
    """Reads the settings of a harvester from goharvest's spelling into values by field name."""

    logging_level = "info"

    def harvest(self) -> Mapping[str, Any]:
        """Return the file's settings of the harvester, and store the level of its `logging:` section."""
        top = self.entries(self.root, ())
        if not {"harvest", "logging"} & top.keys():
            return self.mapping(top, ())
        values = ...
        for key, node in top.items():
            if key == "harvest":
                values = self.value(node, ())
            elif key == "logging":
                self._logging(node)
            else:
                elsewhere = {name: f"harvest.{name}" for name in _NAMES[()]}
                self.note(unknown(key, ("harvest", "logging"), elsewhere=elsewhere), node)
        return {} if values is ... else values

    def _logging(self, node: yaml.Node) -> None:
        entries = self.entries(node, ("logging",)) if self.is_mapping(node, ("logging",)) else {}
        for key, value in entries.items():
            level = python_level(value.value) if isinstance(value, yaml.ScalarNode) else None
            if key != "level":
                self.note(unknown(key, ("level",)).under("logging"), value)
            elif value.tag == NULL:
                continue
            elif level is not None:
                self.logging_level, self.lines["logging", "level"] = level, line_of(value)
            else:
                remedy = f"choose one of {NAMED_LEVELS}"
                self.note(Problem(path=("logging", "level"), message="is not a level", remedy=remedy), value)

    def value(self, node: yaml.Node, path: Place) -> Any:
        """Return the value of a node. A mapping or list at a place where the model has neither becomes `()`: no field
        accepts `()`, so the model reports a problem."""
        self.lines[path] = line_of(node)
        if path in _MAPPINGS:
            return super().value(node, path) if self.is_mapping(node, path) else ...
        if isinstance(node, yaml.ScalarNode) or (path == ("columns",) and isinstance(node, yaml.MappingNode)):
            return super().value(node, path)
        if path[0] == "columns" and len(path) > 1:  # read unchanged; the model checks it
            return self.construct(node, path, remedy="write an entry a line, its texts in quotes")
        return ()

    def mapping(self, entries: dict[str, yaml.Node], path: Place) -> dict[str, Any]:
        """Return the values of a mapping. The keys are field names for a mapping of fields, else the file's keys."""
        if path in _NAMES:
            entries = self._by_field(entries, path)
        return super().mapping(entries, path)

    def _by_field(self, entries: dict[str, yaml.Node], prefix: Place) -> dict[str, yaml.Node]:
        known = _NAMES[prefix]
        elsewhere = {} if prefix else {name: f"limits.{name}" for name in _NAMES["limits",]}
        found: dict[str, yaml.Node] = {}
        keys: dict[str, str] = {}
        for key, node in entries.items():
            name = known.get(key)
            if name is None:
                problem = unknown(key, known, elsewhere=elsewhere).under(*prefix)
                self.note(replace(problem, written=".".join([*prefix, key])), node)
            elif name in found:
                remedy = f"remove `{key}` or `{keys[name]}`: they mean the same"
                self.note(Problem(path=(*prefix, name), message="is given twice", remedy=remedy), node)
            else:
                found[name], keys[name] = node, key
        return found

    def scalar(self, node: yaml.Node, path: Place) -> Any:
        """Return the value of a scalar node. If goharvest's field is a text, return text, even if YAML would read a
        number. A duration without a unit is a problem."""
        field, name = path[0], path[-1]
        in_kafka = field in _KAFKA
        if node.tag == NULL:
            return None if in_kafka else ...
        if field in _DEFAULT_IF_EMPTY and not node.value:
            return ...
        if field == "data_source" and node.tag in _SCALARS:
            return self._data_source(node)
        # A password of digits has to stay text: as a number, 0123 would become 83.
        as_text = field in _TEXTS or (in_kafka and (is_secret(name) or name in _NAMES_IN_KAFKA))
        if as_text and node.tag in _SCALARS:
            return node.value
        found = self.construct(node, path)
        if node.tag in _NUMBERS and name.endswith("_seconds") and not in_kafka and found not in (0, ...):
            self.note(Problem(path=path, message=BARE_NUMBER, remedy=SPELLING), node)
            return ...
        return found

    def _data_source(self, node: yaml.Node) -> Any:
        try:
            return DataSource.parse(node.value, lib_pq_defaults=True)
        except ConfigError as error:
            self.note(Problem(path=("data_source",), message=complaint(error), remedy=error.next_step), node)
            return ...
