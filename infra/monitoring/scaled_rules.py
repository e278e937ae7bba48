"""The alert rules for a short run: a copy of the rules with all times divided by a factor.

Times are `for`, `keep_firing_for`, a group's `interval`, each duration in an expression, and each number that is
compared with a gauge of seconds. Any other number must be compared with a count. Changes of a gauge of seconds, and
quotients of seconds by seconds, are counts. If it is unclear whether a number is a time or a count, the rule cannot be
scaled, and an error is raised.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

FILE = Path(__file__).with_name("alerts.yml")

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![\w.]))
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]))
    |(?P<word>(?:[A-Za-z_]|:(?!\d))[\w:]*)
    |(?P<comparison>==|!=|<=|>=|<|>)
    |(?P<other>=~|!~|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SETS = {"and", "or", "unless"}
_LESS = {"<", "<="}
_PER_SECOND = {"rate", "irate", "deriv"}
"""Functions whose result is a rate: its unit is not the unit of the argument."""
_COUNTED = {"changes", "resets"}
"""Functions whose result is a count, for any argument."""
_OF_SECONDS = re.compile(r"[\w:]+_seconds")


class UnscalableRule(ValueError):
    """A rule contains a number that could be a time or a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token of an expression. `kind` is the name of a group of `_TOKEN`, and `text` is the unchanged text."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRule:
    """An alert with divided times. `due_seconds` is the time from the begin of its cause until it fires: the longest
    time that the expression compares with, plus `for`. `window_seconds` is the longest time for which it fires after
    the end of its cause: the longest range that the expression looks back, plus `keep_firing_for`."""

    name: str
    expression: str
    for_seconds: float
    due_seconds: float
    window_seconds: float


def scaled(
    rules: Mapping[str, Any], factor: float, others: Mapping[str, float] = MappingProxyType({})
) -> tuple[dict[str, Any], list[ScaledRule]]:
    """Return two values: a copy of a rules file's content with all times divided by `factor`, and the alerts in this
    copy. `others` has different factors for some alerts, by alert name."""
    found: list[ScaledRule] = []
    groups = []
    for group in rules["groups"]:
        copies = []
        for rule in group["rules"]:
            divisor = others.get(rule.get("alert", ""), factor)
            expression, thresholds, windows = scaled_expression(rule["expr"], divisor)
            copy = {**rule, "expr": expression, **_divided(rule, ("for", "keep_firing_for"), divisor)}
            copies.append(copy)
            if "record" in rule:
                continue
            waits, lasts = (_seconds_of(copy.get(name, "0s")) for name in ("for", "keep_firing_for"))
            found.append(
                ScaledRule(
                    name=rule["alert"],
                    expression=expression,
                    for_seconds=waits,
                    due_seconds=max(thresholds, default=0.0) + waits,
                    window_seconds=max(windows, default=0.0) + lasts,
                )
            )
        groups.append({**group, "rules": copies, **_divided(group, ("interval",), factor)})
    return {**rules, "groups": groups}, found


def scaled_expression(expression: str, factor: float) -> tuple[str, list[float], list[float]]:
    """Return three values: the expression with all times divided; the divided times that gauges must reach; and the
    divided ranges for which the expression may stay true after its cause ended. Raises UnscalableRule.

    The ranges lack the range of `x[1h] unless x`, because this expression does not stay true for it. The times lack
    those in the right operand of `unless`, because no gauge must reach them. A condition on the time since a past event
    (`time() - gauge < 60`) stays true for that time, so it is a range. A condition on the time until a future event
    (`gauge - time() < 60`) is true only while the gauge has such a value, so it is neither.
    """
    tokens = list(tokens_of(expression))
    written: list[str] = []
    thresholds: list[float] = []
    windows: list[float] = []
    for place, token in enumerate(tokens):
        text = token.text
        if token.kind == "duration":
            seconds = _seconds_of(text) / factor
            windows += [] if _is_remembered(tokens, place) else [seconds]
            text = _duration(seconds)
        elif token.kind == "number" and _is_time(tokens, place, expression):
            seconds = float(text) / factor
            before = [each for each in tokens[:place] if each.kind != "space"]
            if before[-1].text in _LESS:
                windows += [seconds] if list(_operand(before[:-1]))[-1].text == "time" else []
            elif not _is_excluded(tokens, place):
                thresholds.append(seconds)
            text = f"{seconds:.12g}"
        written.append(text)
    return "".join(written), thresholds, windows


def tokens_of(expression: str) -> Iterator[Token]:
    """Yield the tokens of an expression. Their texts, joined, are the expression."""
    for match in _TOKEN.finditer(expression):
        yield Token(kind=match.lastgroup or "other", text=match.group())


def _is_time(tokens: Sequence[Token], place: int, expression: str) -> bool:
    """Return True if the number at index `place` is a time. Raises UnscalableRule if that is unclear."""
    before = [each for each in tokens[:place] if each.kind != "space"]
    number = tokens[place].text
    if not before or before[-1].kind != "comparison":
        raise UnscalableRule(f"{number} in `{expression}` is compared with nothing: is it a time?")
    operand = list(_operand(before[:-1]))
    words = {each.text for each in operand if each.kind == "word"}
    metrics = {each for each in words if each == "up" or ("_" in each and not _is_called(operand, each))}
    of_seconds = {each for each in metrics if _OF_SECONDS.fullmatch(each)}
    if words & _PER_SECOND and float(number) != 0:
        raise UnscalableRule(f"{number} in `{expression}` is compared with something per second")
    if words & _COUNTED and len(metrics) == 1:
        return False
    if of_seconds == metrics != set() and _is_quotient(operand):
        return False
    if words & _COUNTED or not metrics or (of_seconds and (of_seconds != metrics or words & _PER_SECOND)):
        raise UnscalableRule(f"{number} in `{expression}` is compared with several units, or no unit")
    return bool(of_seconds)


def _operand(before: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens of a comparison's left operand, from right to left. `before` are all tokens left of it."""
    depth = 0
    for token in reversed(before):
        depth += {")": 1, "(": -1}.get(token.text, 0)
        if depth < 0 or (depth == 0 and (token.text in _SETS or token.kind == "comparison")):
            return
        yield token


def _is_remembered(tokens: Sequence[Token], place: int) -> bool:
    """Return True if the token at index `place` is the range in `x[1h] unless x`, where x is the same metric twice."""
    words = [each.text for each in tokens[:place] if each.kind == "word"]
    metric = next((each for each in reversed(words) if each == "up" or "_" in each), "")
    after = _from_nearest_set(tokens[place:], ")")
    return after[:1] == ["unless"] and metric in after


def _is_excluded(tokens: Sequence[Token], place: int) -> bool:
    """Return True if the token at index `place` is in the right operand of `unless`."""
    return _from_nearest_set(tokens[place::-1], "(")[:1] == ["unless"]


def _from_nearest_set(tokens: Sequence[Token], leaves: str) -> list[str]:
    """Find the first set operator at the nesting level of the first token, or at an outer level. Return the texts of
    the tokens from this operator on; empty if there is none. `leaves` is the parenthesis that leads to an outer level:
    `)` if `tokens` run to the right, `(` if they run to the left."""
    depth = lowest = 0
    for place, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0) * (1 if leaves == ")" else -1)
        lowest = min(lowest, depth)
        if depth == lowest and token.text in _SETS:
            return [each.text for each in tokens[place:]]
    return []


def _is_quotient(backwards: Sequence[Token]) -> bool:
    """Return True if an operand is a quotient whose numerator and denominator each have a metric of seconds."""
    depth, divided = 0, []
    for place, token in enumerate(backwards):
        depth += {")": 1, "(": -1}.get(token.text, 0)
        if depth == 0 and token.text in {"*", "+", "-", "/"}:
            divided.append(place)
    if [backwards[place].text for place in divided] != ["/"]:
        return False
    parts = backwards[: divided[0]], backwards[divided[0] + 1 :]
    return all(any(_OF_SECONDS.fullmatch(each.text) for each in part) for part in parts)


def _is_called(backwards: Sequence[Token], word: str) -> bool:
    """Return True if the word names a function: a parenthesis follows it. `backwards` runs from right to left."""
    return any(
        each.text == word and place > 0 and backwards[place - 1].text == "(" for place, each in enumerate(backwards)
    )


def _divided(fields: Mapping[str, Any], names: Sequence[str], factor: float) -> dict[str, str]:
    return {name: _duration(_seconds_of(fields[name]) / factor) for name in names if name in fields}


def _seconds_of(duration: str) -> float:
    return reduce(lambda sum_, part: sum_ + int(part[0]) * _UNIT_SECONDS[part[1]], _PART.findall(duration), 0.0)


def _duration(seconds: float) -> str:
    """Return a duration in Prometheus' notation; the shortest is 1 ms."""
    return f"{max(1, round(seconds * 1000))}ms"
