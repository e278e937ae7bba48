"""Errors in the arguments of a command. They are found before the command connects to anything; the exit code is 2.

`problem` gives typer's own errors the form of all errors of this library: the cause, the evidence and the next step.
"""

import difflib
import re
from collections.abc import Collection
from typing import Any

import typer

from harvest_lib.cli.help_text import usage
from harvest_lib.errors import HarvestError

_SNAPSHOT = re.compile(r"\d+:\d+:(\d+(,\d+)*)?(@\d+)?")
_QUOTED = re.compile(r"'([^']*)'")
_BOUNDS = {"greater_than_equal": ("less than", "ge"), "less_than_equal": ("more than", "le")}
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


class Misuse(typer.BadParameter):
    """An argument that a command refuses."""

    def __init__(self, cause: str, *, evidence: str = "", next_step: str) -> None:
        super().__init__(cause)
        self.evidence, self.next_step = evidence, next_step


class UsageProblem(HarvestError):
    """A command line that is wrong: correct it as the message says."""

    exit_code = 2


def problem(error: Any) -> UsageProblem:
    """Return the error of a wrong command line, from an error of typer."""
    context, kind = error.ctx, type(error).__name__
    path = "harvest" if context is None else context.command_path
    see, message = f"see `{path} --help`", str(error.message).rstrip(".")
    if isinstance(error, Misuse):
        return UsageProblem(error.message, evidence=error.evidence, next_step=error.next_step)
    if kind == "NoSuchOption":
        return UsageProblem(f"`{path}` has no option {error.option_name}", next_step=_near(error.possibilities, see))
    if kind == "MissingParameter":
        name = _name(error.param)
        step = see if context is None else f"write: {path} {usage(context.command)}"
        return UsageProblem(f"{name} is missing", next_step=step)
    if kind == "BadOptionUsage":
        takes = "needs a value" if "requires" in message else "takes no value"
        return UsageProblem(f"{error.option_name} {takes}", next_step=see)
    if "unexpected extra argument" in message:
        return UsageProblem("there are too many arguments", evidence=message[message.find("(") :], next_step=see)
    if getattr(error, "param", None) is not None:
        return _wrong_value(error, see)
    return UsageProblem(message[:1].lower() + message[1:], next_step=see)


def no_such_command(path: str, name: str, known: Collection[str]) -> Misuse:
    """Return the error for an unknown command of a group."""
    see = f"`{path} --help` lists all"
    return Misuse(f"`{path}` has no command {name!r}", next_step=_near(difflib.get_close_matches(name, known), see))


def require_duration(text: str, option: str) -> float:
    """Return the seconds of a duration. Raises Misuse."""
    from harvest_lib.config.durations import SPELLING, parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise Misuse(f"{option} {text!r} {error}", next_step=SPELLING) from error
    if seconds < 0:
        raise Misuse(f"{option} {text!r} is negative", next_step=SPELLING)
    return seconds


def require_subscription(name: str) -> None:
    """Raise Misuse unless a subscription can have this name."""
    from harvest_lib.config.subscription_name import NEXT_STEP, is_legal_subscription

    if not is_legal_subscription(name):
        raise Misuse(f"{name!r} cannot name a subscription", next_step=NEXT_STEP)


def require_position(text: str, option: str, *names: str) -> None:
    """Raise Misuse unless the text is one of the names, or has the form of a snapshot."""
    if text not in names and not _SNAPSHOT.fullmatch(text):
        raise Misuse(
            f"{option} {text!r} is no position",
            next_step=f"write {', '.join(names)}, or a low watermark that `harvest subscriptions list` shows, such as "
            "7071:7075:7071",
        )


def require_topics(topics: Collection[str], option: str, *, prefixes: bool = False) -> None:
    """Raise Misuse for a name that no topic can have. With `prefixes`, a name may end in `*`."""
    from harvest_lib.record import is_legal_topic

    for each in topics:
        if not (prefixes and each == "*") and not is_legal_topic(each.removesuffix("*") if prefixes else each):
            raise Misuse(
                f"{option}: {each!r} cannot name a topic",
                next_step="use 1 to 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`"
                + (", with * at the end for a prefix" if prefixes else ""),
            )


def require_table(name: str | None, option: str) -> None:
    """Raise Misuse unless the name is None, `table` or `schema.table`."""
    from harvest_lib.postgres.table_names import name_parts

    parts = name_parts("outbox" if name is None else name)
    if not all(each.strip() for each in parts) or "." in parts[-1]:
        raise Misuse(f"{option} {name!r} is no name of a table", next_step="write `table` or `schema.table`")


def require_choice(value: object, option: str, choices: Collection[object]) -> None:
    """Raise Misuse unless the value is one of the choices."""
    if value not in choices:
        raise Misuse(f"{option} must be {' or '.join(map(str, choices))}", evidence=repr(value), next_step="choose one")


def _near(near: Collection[str] | None, otherwise: str) -> str:
    return f"did you mean {' or '.join(sorted(near))}? If not, {otherwise}" if near else otherwise


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _wrong_value(error: Any, see: str) -> UsageProblem:
    """Return the error for a value of the wrong type. pydantic's texts are replaced."""
    name, message = _name(error.param), str(error.message).removeprefix("Value error, ").rstrip(".")
    details = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    kind, given = (details[0]["type"], details[0]["input"]) if details else ("", None)
    if kind in _BOUNDS:
        comparison, bound = _BOUNDS[kind]
        cause = f"{name} {given} is {comparison} {details[0]['ctx'][bound]}"
        return UsageProblem(cause, next_step=f"choose another number; {see}")
    if wanted := _TYPES.get(kind.partition("_")[0]):
        return UsageProblem(f"{name} must be {wanted}", evidence=f"{given!r}", next_step=f"correct it; {see}")
    if " is not one of " in message:
        value, _, rest = message.partition(" is not one of ")
        choices = _QUOTED.findall(rest)
        near = difflib.get_close_matches(value.strip("'"), choices, n=1)
        return UsageProblem(f"{name} {value} is unknown", next_step=_near(near, f"choose one of {', '.join(choices)}"))
    return UsageProblem(f"{name}: {message}", next_step=see)
