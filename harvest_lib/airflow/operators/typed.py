"""Templates whose values keep their types, for configurations that are mappings."""

import re
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2.nativetypes import NativeEnvironment


class _Expression:
    """A text of a configuration that is one expression. Airflow calls `resolve` of it, as of an XCom's reference."""

    def __init__(self, source: str, environment: jinja2.Environment) -> None:
        self._value = environment.compile_expression(source, undefined_to_none=False)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        return _plain(self._value(context))


def typed(content: Any, environment: jinja2.Environment) -> Any:
    """Return the same mapping or list, in which `"{{ expression }}"` is rendered to the expression's value.

    A number, a truth value, None, a mapping and a list keep their types; any other value becomes text, and a text
    stays as it is. A text with more in it than one expression is left to Airflow. So is all where the DAG itself asks
    for native objects.
    """
    if isinstance(environment, NativeEnvironment):
        return content
    if isinstance(content, str):
        source = _sole_expression(content, environment)
        return content if source is None else _Expression(source, environment)
    if isinstance(content, dict):
        return {key: typed(value, environment) for key, value in content.items()}
    return [typed(value, environment) for value in content] if isinstance(content, list | tuple) else content


def _sole_expression(text: str, environment: jinja2.Environment) -> str | None:
    start, end = map(re.escape, (environment.variable_start_string, environment.variable_end_string))
    found = re.fullmatch(rf"\s*{start}[-+]?((?:(?!{start}|{end}).)*?)[-+]?{end}\s*", text, re.DOTALL)
    return found[1] if found else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)
