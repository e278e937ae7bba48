"""The text of a configuration file and the nodes in it. Errors say where, and never what the file says there."""

from pathlib import Path

import yaml

from harvest_lib.config.problems import Origins, Problem
from harvest_lib.config.report import config_error
from harvest_lib.errors import ConfigError

NULL = "tag:yaml.org,2002:null"


def read_text(path: Path) -> str:
    """Return what is in a file. Raises ConfigError."""
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
    if failure is not None:  # outside the handlers: what they caught may carry the file's contents
        raise ConfigError(f"the configuration file {failure[0]}", source=str(path), next_step=failure[1])
    return text


def compose(text: str, source: str, *, needed: str = "`leaderGroupID`") -> tuple[yaml.MappingNode, yaml.SafeLoader]:
    """Return the nodes of a file, whose marks say where each is, and what makes values of them.

    `needed` is what a file has to hold at least. Raises ConfigError.
    """
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
        problem = not_a_mapping(())
        raise config_error([problem], Origins(file=source, lines={(): line_of(root)}))
    return root, loader


def _without_values(problem: str) -> str:
    """Keep yaml's own words, which quote single characters of the file, except where they quote names from it."""
    if any(quoted in problem for quoted in ("alias", "anchor", "tag")):
        return "an unquoted value begins with `*`, `&` or `!`, which have a meaning in YAML"
    return problem


def not_a_mapping(path: tuple[str, ...]) -> Problem:
    """Report something else where settings should be."""
    subject = "" if path else "the configuration "
    return Problem(path=path, message=f"{subject}is not a mapping", remedy="write `key: value` lines")


def line_of(node: yaml.Node) -> int:
    """Return the line that a node begins in, from 1."""
    return int(node.start_mark.line) + 1
