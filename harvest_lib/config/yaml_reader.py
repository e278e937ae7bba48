"""Reads a YAML file into values, with the line of each value, and collects all problems of its syntax.

Errors name the field and the line, and never quote the file.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from harvest_lib.config.problems import Origins, Place, Problem, config_error
from harvest_lib.errors import ConfigError

NULL = "tag:yaml.org,2002:null"
INT = "tag:yaml.org,2002:int"
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_NO_VALUE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of yaml for text that does not match its tag (`!!bool maybe`, `!!int ''`, `!!timestamp x`), or is nested too
deeply."""


class YamlReader:
    """Reader of a YAML file. The path of a value consists of mapping keys and of list indexes from 0.

    The error for an empty file shows `needed`, the minimum contents of a file. Raises ConfigError if the file is not
    YAML or not a mapping. A subclass defines how scalars are read, and the meaning of a mapping's keys.
    """

    def __init__(self, path: Path, *, needed: str) -> None:
        self.path = path
        self.root, self._loader = _compose(path, needed)
        self.lines: dict[Place, int] = {(): line_of(self.root)}
        self.problems: list[Problem] = []

    def value(self, node: yaml.Node, path: Place) -> Any:
        """Return the value of a node, with the values of all nodes below it, and store the line of each. Return `...`
        for a node without a value."""
        self.lines[path] = line_of(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(self.entries(node, path), path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*path, str(number))) for number, each in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, entries: dict[str, yaml.Node], path: Place) -> dict[str, Any]:
        """Return the values of a mapping's entries. Entries without a value are left out."""
        values = {name: self.value(node, (*path, name)) for name, node in entries.items()}
        return {name: value for name, value in values.items() if value is not ...}

    def scalar(self, node: yaml.Node, path: Place) -> Any:
        """Return the value of a scalar node, a node that is neither a mapping nor a list."""
        return self.construct(node, path)

    def construct(self, node: yaml.Node, path: Place, *, remedy: str = "put it in quotes") -> Any:
        """Return the Python value that YAML constructs from a node. If that fails, note a problem and return `...`."""
        is_scalar = isinstance(node, yaml.ScalarNode)
        try:
            return self._loader.construct_object(node, deep=not is_scalar)
        except _NO_VALUE as error:
            if is_scalar and isinstance(error, RecursionError):  # the enclosing node is nested too deeply
                raise
            self.note(Problem(path=path, message="is not what its tag or form says", remedy=remedy), node)
            return ...

    def entries(self, node: yaml.MappingNode, path: Place) -> dict[str, yaml.Node]:
        """Return the value nodes of a mapping by key, including the entries that `<<` merges into it. As the line of a
        value, the line of its key is used. Keys that are given twice, or are not text, are noted as problems."""
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE:
                if key_node.value in first:
                    remedy = f"keep a single entry; the first is in line {first[key_node.value]}"
                    self.note(Problem(path=(*path, key_node.value), message="is given twice", remedy=remedy), key_node)
                first.setdefault(key_node.value, line_of(key_node))
        found: dict[str, yaml.Node] = {}
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError:
            self.note(Problem(path=path, message="has a `<<` that cannot be merged", remedy="write it out"), node)
            return found
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == _STR:
                marked = copy.copy(value_node)  # an alias shares its node with the anchor
                marked.start_mark = key_node.start_mark
                found[key_node.value] = marked
            else:
                problem = Problem(path=path, message="has a key that is not text", remedy="put the key in quotes")
                self.note(problem, key_node)
        return found

    def is_mapping(self, node: yaml.Node, path: Place) -> TypeGuard[yaml.MappingNode]:
        """Return True for a mapping. For any other value, except an empty value, note a problem."""
        if not isinstance(node, yaml.MappingNode) and node.tag != NULL:
            self.note(_not_a_mapping(path), node)
        return isinstance(node, yaml.MappingNode)

    def note(self, problem: Problem, node: yaml.Node) -> None:
        """Add a problem, with the line of its node, to the problems of this file."""
        written = problem.written or self.spelled(problem.path)
        self.problems.append(replace(problem, line=line_of(node), written=written))

    def spelled(self, _path: Place) -> str:
        """Return a path as spelled in the file. If the text is empty, as here, the error derives the spelling from the
        field names; a subclass may override this."""
        return ""


def line_of(node: yaml.Node) -> int:
    """Return the number, from 1, of the line in which a node begins."""
    return int(node.start_mark.line) + 1


def _compose(path: Path, needed: str) -> tuple[yaml.MappingNode, yaml.SafeLoader]:
    """Return the root node of a file, with line marks, and the loader that constructs values from nodes."""
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
        raise config_error([_not_a_mapping(())], Origins(file=source, lines={(): line_of(root)}))
    return root, loader


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


def _without_values(problem: str) -> str:
    """Return yaml's message about a problem. A message that would quote names from the file is replaced by another
    text; other messages of yaml quote at most single characters."""
    if any(quoted in problem for quoted in ("alias", "anchor", "tag")):
        return "an unquoted value begins with `*`, `&` or `!`, which have a meaning in YAML"
    return problem


def _not_a_mapping(path: Place) -> Problem:
    """Return the problem that the value at `path` should be a mapping of settings, but is not."""
    subject = "" if path else "the configuration "
    return Problem(path=path, message=f"{subject}is not a mapping", remedy="write `key: value` lines")
