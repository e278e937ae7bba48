"""A YAML file as plain values, with the line of each, and all that is wrong with it before anything is checked.

`${NAME}` in a text stands for an environment variable: what is secret need not be in the file.
"""

import copy
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.config.problems import Origins, Problem
from harvest_lib.config.yaml_nodes import compose, line_of, read_text

_VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"

Place = tuple[str, ...]


@dataclass(slots=True)
class DeclaredYaml:
    """What is in a file. A path is made of keys, and of numbers, from 0, where there is a list."""

    loader: yaml.SafeLoader
    environ: Mapping[str, str]
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def value(self, node: yaml.Node, path: Place = ()) -> Any:
        """Return the value of a node. What has none is noted, and is None."""
        self.lines.setdefault(path, line_of(node))
        if isinstance(node, yaml.MappingNode):
            return {key: self.value(each, (*path, key)) for key, each in self._entries(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*path, str(number))) for number, each in enumerate(node.value)]
        try:
            found = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError):
            self.note(Problem(path=path, message="is not what its tag or form says", remedy="put it in quotes"), node)
            return None
        return self._with_variables(found, node, path) if isinstance(found, str) else found

    def note(self, problem: Problem, node: yaml.Node) -> None:
        """Keep a problem, to be reported with the others."""
        self.problems.append(replace(problem, line=line_of(node), written=spelled(problem.path)))

    def _entries(self, node: yaml.MappingNode, path: Place) -> Iterator[tuple[str, yaml.Node]]:
        """Pass on the entries of a mapping, merged ones included; the value's mark becomes the key's."""
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE:
                if key_node.value in seen:
                    remedy = f"keep one; the first is in line {seen[key_node.value]}"
                    message = "is given twice"
                    self.note(Problem(path=(*path, key_node.value), message=message, remedy=remedy), key_node)
                seen.setdefault(key_node.value, line_of(key_node))
        try:
            self.loader.flatten_mapping(node)
        except yaml.YAMLError:
            self.note(Problem(path=path, message="has a `<<` that cannot be merged", remedy="write it out"), node)
            return
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == _STR:
                marked = copy.copy(value_node)  # an alias shares its node with the anchor
                marked.start_mark = key_node.start_mark
                yield key_node.value, marked
            else:
                problem = Problem(path=path, message="has a key that is not text", remedy="put the key in quotes")
                self.note(problem, key_node)

    def _with_variables(self, text: str, node: yaml.Node, path: Place) -> str:
        missing = sorted({name for name in _VARIABLE.findall(text) if name not in self.environ})
        if missing:
            remedy = f"set {', '.join(missing)}, or write what is meant"
            self.note(Problem(path=path, message=f"needs {missing[0]}, which is not set", remedy=remedy), node)
            return text
        return _VARIABLE.sub(lambda match: self.environ[match[1]], text)


def read(path: Path, *, environ: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], Origins]:
    """Return what a file says, and where it says it. Raises ConfigError for what is no YAML, or no mapping."""
    root, loader = compose(read_text(path), str(path), needed="`folder`, `reader` and `writers`")
    found = DeclaredYaml(loader, environ)
    try:
        values = found.value(root)
    except RecursionError:  # an alias inside what its anchor names
        values = {}
        found.note(Problem(path=(), message="the file contains itself", remedy="write it without that alias"), root)
    return values, Origins(file=str(path), lines=found.lines, problems=found.problems)


def spelled(path: Place) -> str:
    """Write a path as people would: `writers.lake.transforms[2]`."""
    text = ""
    for part in path:
        text += f"[{int(part) + 1}]" if part.isdigit() and text else f".{part}" if text else part
    return text
