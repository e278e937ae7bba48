"""Problems of a configuration, all reported together.

Values may be secrets, so no problem repeats a value. A problem names the field, the rule, the remedy, and the origin of
the value: the file and line, or the environment variable.
"""

import difflib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from harvest_lib.config.durations import format_duration
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.errors import ConfigError

Place = tuple[str, ...]

_OURS = "harvest"
_WITH_NAMES_OF_OTHERS = ("base_kafka_config", "producer_kafka_config", "columns")
"""Mappings with keys of a single spelling: Kafka's names, or the names of a record's parts."""

_RANGES = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_A_MAPPING = ("must be a mapping of settings", "write its settings as indented `key: value` lines")
_WRONG_TYPES = {
    "bool": ("must be true or false", "write `true` or `false`"),
    "int": ("must be a whole number", "write digits only"),
    "string": ("must be text", "write text, in quotes if it looks like something else"),
    "model": _A_MAPPING,
    "dict": _A_MAPPING,
}
_OTHERS = {
    "missing": ("is missing", "add it"),
    "string_too_short": ("is empty", "write a name, or remove it for the default"),
    "string_pattern_mismatch": ("has characters that are not allowed, or is too long", "write a shorter, plain name"),
    "path_type": ("must be a path", "write text, in quotes if it looks like something else"),
    "float_type": ("must be a number", "write a number"),
    "float_parsing": ("must be a number", "write a number"),
}
"""Wordings of further errors by the whole name of pydantic's kind."""
_LISTS = ("list_type", "tuple_type", "set_type", "frozen_set_type", "sequence_str")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One invalid setting. `path` is made of field names, from the top of the configuration.

    `line`, and `written` (the field as spelled in the file), are set if the path alone does not determine them.
    """

    path: Place
    message: str
    remedy: str
    line: int | None = None
    written: str = ""

    def under(self, *prefix: str) -> "Problem":
        """Return the same problem with its path below `prefix`."""
        return replace(self, path=(*prefix, *self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Origin of each value: an argument, a variable, or a line of the file. Paths are made of field names."""

    file: str = ""
    lines: Mapping[Place, int] = field(default_factory=dict)
    variables: Mapping[Place, str] = field(default_factory=dict)
    arguments: AbstractSet[Place] = frozenset()

    def place(self, path: Place) -> tuple[str, int | None]:
        """Return the source and the line of a path, or of the nearest enclosing path with a known source."""
        for length in range(len(path), 0, -1):
            prefix = path[:length]
            if prefix in self.arguments:
                return "", None
            if prefix in self.variables:
                return f"environment variable {self.variables[prefix]}", None
            if prefix in self.lines:
                return self.file, self.lines[prefix]
        return self.file, self.lines.get(())


def config_error(problems: Iterable[Problem], origins: Origins) -> ConfigError:
    """Return a single error for all problems, ordered by line. The error's attributes describe the first problem."""
    errors = [_error(each, origins) for each in problems]
    errors.sort(key=lambda each: (each.line is None, each.line or 0))
    first = errors[0]
    if len(errors) == 1:
        return first
    listed = [f"{_prefix(each)}{each.cause}; {each.next_step}" for each in errors]
    cause = "\n    ".join([f"{len(errors)} settings are wrong:", *listed])
    next_step = "correct all of them; they were checked together"
    error = ConfigError(cause, field=first.field, source=first.source, line=first.line, next_step=next_step)
    error.problems = errors
    return error


def _error(problem: Problem, origins: Origins) -> ConfigError:
    """Return the error for a problem. The field is spelled as in the source of the value."""
    at = (origins.file, problem.line)
    source, line = at if problem.line is not None else origins.place(problem.path)
    path = problem.path
    if origins.file and source == origins.file:
        known = path[:1] if path[:1] and path[0] in _WITH_NAMES_OF_OTHERS else path
        path = (*map(goharvest_name, known), *path[len(known) :])
    name = problem.written or ".".join(path)
    cause = f"`{name}` {problem.message}" if name else problem.message
    return ConfigError(cause, field=name, source=source, line=line, next_step=problem.remedy)


def _prefix(error: ConfigError) -> str:
    if error.line is not None:
        return f"line {error.line}: "
    return f"{error.source}: " if error.source else ""


def unsendable(text: str) -> str:
    """Return the reason why neither Postgres nor Kafka accepts a text; empty if both accept it."""
    if "\0" in text:
        return "has a NUL character in it"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "is not Unicode: it has half of a surrogate pair in it, or came from bytes that are not UTF-8"
    return ""


def unknown(key: str, known: Iterable[str], *, elsewhere: Mapping[str, str] | None = None) -> Problem:
    """Return the problem of an unknown key, with the nearest known key. `elsewhere` maps a misplaced key to the setting
    that is meant."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1)
    if elsewhere and key in elsewhere:
        remedy = f"move it to `{elsewhere[key]}`"
    elif near:
        remedy = f"did you mean `{by_lower[near[0]]}`?"
    else:
        remedy = f"remove it; known here: {', '.join(sorted(by_lower.values()))}"
    return Problem(path=(key,), message="is not a setting", remedy=remedy)


def custom_error(message: str, remedy: str) -> PydanticCustomError:
    """Return an error with this text, for a pydantic validator to raise."""
    return PydanticCustomError(_OURS, "{message}", {"message": message, "remedy": remedy})


def raise_in_validator(title: str, problems: Iterable[Problem]) -> None:
    """Raise problems from inside a pydantic validator, each at its own path; do nothing if there are none."""
    details = [
        InitErrorDetails(type=custom_error(each.message, each.remedy), loc=each.path, input=None) for each in problems
    ]
    if details:
        raise ValidationError.from_exception_data(title, details, hide_input=True)


def problems_of(error: ValidationError) -> list[Problem]:
    """Return the problems of a pydantic error, reworded, without the input values that the error contains."""
    found = []
    for each in error.errors(include_url=False, include_input=False):
        path = tuple(str(part) for part in each["loc"])
        kind, context = each["type"], each.get("ctx", {})
        if kind == "default_factory_not_called":
            continue  # the consequence of another problem in the same list
        message, remedy = _wording(kind, context, path[-1] if path else "")
        found.append(Problem(path=path, message=message, remedy=remedy))
    return found


def _wording(kind: str, context: Mapping[str, Any], name: str) -> tuple[str, str]:
    if kind == _OURS:
        return context["message"], context["remedy"]
    if kind in _LISTS or (kind, context.get("class")) == ("is_instance_of", "Sequence"):
        return "must be a list", f"write it in brackets, with commas: `{name}: [one, another]`"
    if kind in _RANGES:
        comparison, key = _RANGES[kind]
        bound = format_duration(context[key]) if name.endswith("_seconds") else context[key]
        return f"is out of range: it must be {comparison} {bound}", "choose a value in range"
    if kind == "extra_forbidden":
        return "is not a setting", "remove it, or correct its name"
    if kind == "literal_error":
        return f"must be {context['expected']}", "choose one of them"
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind == "value_error":
        return f"is not valid: {context['error']}", "correct it"
    return _WRONG_TYPES.get(kind.partition("_")[0], ("is not valid", "correct it: docs/configuration.md has its form"))
