"""A YAML file as values, with the line of each, and all that is wrong with it before anything is checked.

Errors name the place, and never quote the file.
"""

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from harvest_lib.config.problems import Origins, Problem
from harvest_lib.config.report import config_error
from harvest_lib.errors import ConfigError

NULL = "tag:yaml.org,2002:null"
_STR = "tag:yaml.org,2002:str"
_INT = "tag:yaml.org,2002:int"
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
_MERGE = "tag:yaml.org,2002:merge"
_NO_VALUE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of yaml for text that is not of its tag (`!!bool maybe`, `!!int ''`, `!!timestamp x`), or too deep."""
_VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")

Place = tuple[str, ...]


@dataclass(slots=True)
class YamlReader:
    """Reader of one file. A path is made of keys, and of numbers, from 0, where there is a list."""

    loader: yaml.SafeLoader
    spell: Callable[[Place], str] = lambda _path: ""
    """Spelling of a path in the file, where the names of fields do not show it."""
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def note(self, problem: Problem, node: yaml.Node) -> None:
        """Keep a problem, to be reported with the others."""
        self.problems.append(replace(problem, line=line_of(node), written=problem.written or self.spell(problem.path)))

    def entries(self, node: yaml.Node, path: Place) -> Iterator[tuple[str, yaml.Node]]:
        """Pass on the entries of a mapping, merged ones included; the value's mark becomes the key's."""
        if node.tag == NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            self.note(_not_a_mapping(path), node)
            return
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE:
                if key_node.value in first:
                    remedy = f"keep one; the first is in line {first[key_node.value]}"
                    self.note(Problem(path=(*path, key_node.value), message="is given twice", remedy=remedy), key_node)
                first.setdefault(key_node.value, line_of(key_node))
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

    def construct(self, node: yaml.Node, path: Place, *, remedy: str = "put it in quotes") -> Any:
        """Return the value of a node. A node without one is noted, and gives `...`."""
        is_scalar = isinstance(node, yaml.ScalarNode)
        try:
            return self.loader.construct_object(node, deep=not is_scalar)
        except _NO_VALUE as error:
            if is_scalar and isinstance(error, RecursionError):  # of what is around it
                raise
            self.note(Problem(path=path, message="is not what its tag or form says", remedy=remedy), node)
            return ...

    def values(self, node: yaml.Node, environ: Mapping[str, str], path: Place = ()) -> Any:
        """Return the value of a node with all that is in it, lines included. A node without one is noted, and gives
        None. `${NAME}` in a text stands for a variable of `environ`: secrets need not be in the file.
        """
        self.lines.setdefault(path, line_of(node))
        if isinstance(node, yaml.MappingNode):
            return {key: self.values(each, environ, (*path, key)) for key, each in self.entries(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.values(each, environ, (*path, str(number))) for number, each in enumerate(node.value)]
        in_kafka = path[-2:-1] == ("kafka",)
        found = node.value if in_kafka and _is_other_number(node) else self.construct(node, path)
        if not isinstance(found, str):
            return None if found is ... else found
        if missing := sorted({name for name in _VARIABLE.findall(found) if name not in environ}):
            remedy = f"set {', '.join(missing)}, or write what is meant"
            self.note(Problem(path=path, message=f"needs {missing[0]}, which is not set", remedy=remedy), node)
            return found
        return _VARIABLE.sub(lambda match: environ[match[1]], found)


def _is_other_number(node: yaml.Node) -> bool:
    """Return True if YAML takes a scalar for a whole number that is written otherwise: 0123 is 83, 1_000 is 1000.

    Kafka's clients take texts: there the text counts as written.
    """
    return isinstance(node, yaml.ScalarNode) and node.tag == _INT and not _PLAIN_NUMBER.fullmatch(node.value)


def read(path: Path, *, environ: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], Origins]:
    """Return the values of a file, and their origins. Raises ConfigError for a file that is no YAML, or no mapping."""
    root, loader = compose(path, needed="`folder`, `reader` and `writers`")
    reader = YamlReader(loader, spelled)
    try:
        values = reader.values(root, environ)
    except RecursionError:  # an alias inside its own anchor
        values = {}
        reader.note(Problem(path=(), message="the file contains itself", remedy="write it without that alias"), root)
    return values, Origins(file=str(path), lines=reader.lines, problems=reader.problems)


def spelled(path: Place) -> str:
    """Write a path in readable form: `writers.lake.transforms[2]`."""
    text = ""
    for part in path:
        text += f"[{int(part) + 1}]" if part.isdigit() and text else f".{part}" if text else part
    return text


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises ConfigError."""
    failure = None
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        failure = ("does not exist", "give the path of a YAML file that is there")
    except IsADirectoryError:
        failure = ("is a folder", "give the path of a file in it")
    except OSError as error:
        failure = (f"cannot be read: {error.strerror}", "check its permissions")
    except UnicodeDecodeError as error:
        failure = (f"is not UTF-8 at byte {error.start + 1}", "save it as UTF-8")
    if failure is not None:  # outside the handlers: caught errors may carry the file's contents
        raise ConfigError(f"the configuration file {failure[0]}", source=str(path), next_step=failure[1])
    return text


def compose(path: Path, *, needed: str = "`leaderGroupID`") -> tuple[yaml.MappingNode, yaml.SafeLoader]:
    """Return the nodes of a file, whose marks give their places, and the loader that makes values of them.

    `needed` names the minimum that a file has to hold. Raises ConfigError.
    """
    text, source = _read_text(path), str(path)
    root, failure = None, None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        failure = (_without_values(error.problem or "malformed"), mark.line + 1 if mark else None)
    except yaml.reader.ReaderError as error:
        failure = ("it has a character that YAML does not allow", text.count("\n", 0, error.position) + 1)
    except RecursionError:
        failure = ("it is nested too deeply", None)
    if failure is not None:  # outside the handlers: yaml's errors quote the text
        remedy = "correct the YAML there, or in the line before; quote values with special characters"
        raise ConfigError(f"the file is not YAML: {failure[0]}", source=source, line=failure[1], next_step=remedy)
    if root is None or (root.tag == NULL and not isinstance(root, yaml.MappingNode)):
        raise ConfigError("the file is empty", source=source, line=1, next_step=f"give at least {needed}")
    if not isinstance(root, yaml.MappingNode):
        problem = _not_a_mapping(())
        raise config_error([problem], Origins(file=source, lines={(): line_of(root)}))
    return root, loader


def _without_values(problem: str) -> str:
    """Keep yaml's own words, which quote single characters of the file, except where they quote names from it."""
    if any(quoted in problem for quoted in ("alias", "anchor", "tag")):
        return "an unquoted value begins with `*`, `&` or `!`, which have a meaning in YAML"
    return problem


def _not_a_mapping(path: tuple[str, ...]) -> Problem:
    """Report something else where settings should be."""
    subject = "" if path else "the configuration "
    return Problem(path=path, message=f"{subject}is not a mapping", remedy="write `key: value` lines")


def line_of(node: yaml.Node) -> int:
    """Return the line that a node begins in, from 1."""
    return int(node.start_mark.line) + 1
