"""Places in test modules where the wall clock, a fixed sleep, or a short deadline decides an outcome.

On a busy machine everything takes longer, and any process may stand still for seconds. Tests of the tiers `quick` and
`gate` therefore use the clock that is passed in, counts, the order of events, or a condition that comes to hold.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from support.tiers import NO_TIER_NEEDED, tiers_in

SHORTEST_DEADLINE = 60
EXAMINED = {"quick", "gate"}
_CLOCKS = {
    *("boot_seconds", "clock_gettime", "monotonic", "monotonic_ns", "now", "perf_counter", "perf_counter_ns"),
    *("process_time", "time", "time_ns", "unix_ms", "utcnow"),
}
_MODULES_OF_CLOCKS = {"clock", "datetime", "datetime.datetime", "dt.datetime", "time"}
_KEEPS_TIMES = {
    *("abs", "divmod", "enumerate", "float", "int", "list", "max", "min", "pairwise", "reversed", "round", "set"),
    *("sorted", "sum", "tuple", "zip"),
}
_COLLECTS = {"add", "append", "extend", "insert"}
_DEADLINE_FIRST = {"await_stopped", "drain", "exception", "flush", "join", "result", "settimeout", "wait"}
"""Methods whose first argument is a deadline."""
_DEADLINE_BY_NAME = {
    **dict.fromkeys(("await_ready", "eventually"), "seconds"),
    **dict.fromkeys(("acquire", "get", "poll", "urlopen"), "timeout"),
    **dict.fromkeys(("call", "check_call", "check_output", "communicate", "exception", "join", "result"), "timeout"),
    **dict.fromkeys(("run", "wait"), "timeout"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Finding:
    """A line of a module, and what is wrong there."""

    line: int
    reason: str


@dataclass
class _Module:
    """Facts of a module that are known before its functions are read."""

    numbers: dict[str, float] = field(default_factory=dict)
    clocks: set[str] = field(default_factory=set)
    """Clocks that were imported by name."""

    @classmethod
    def of(cls, tree: ast.Module) -> "_Module":
        made = cls()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in {"time", "harvest_lib.clock"}:
                made.clocks |= {each.asname or each.name for each in node.names if each.name in _CLOCKS}
        for node in tree.body:
            value = made.number(node.value) if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value else None
            if value is not None:
                made.numbers |= {name: value for target in _targets(node) for name in _names(target)}
        return made

    def number(self, node: ast.AST) -> float | None:
        """Return the number that an expression is known to be."""
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name):
                return self.numbers.get(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.number(operand)
                return None if value is None else -value
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                values = self.number(left), self.number(node.right)
                return None if None in values else _computed(node.op, *values)
        return None

    def is_constant(self, node: ast.AST) -> bool:
        """Return True if an expression is a number, or is made of names that are written as constants."""
        if self.number(node) is not None:
            return True
        if isinstance(node, ast.BinOp):
            return self.is_constant(node.left) and self.is_constant(node.right)
        if isinstance(node, ast.UnaryOp):
            return self.is_constant(node.operand)
        if _is_call(node, "timedelta"):
            return all(self.is_constant(each) for each in (*node.args, *(keyword.value for keyword in node.keywords)))
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return name.isupper()

    def reads_clock(self, node: ast.AST) -> bool:
        """Return True if a node is a call of a clock of the machine."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in _CLOCKS and ast.unparse(node.func.value) in _MODULES_OF_CLOCKS
        return isinstance(node.func, ast.Name) and node.func.id in self.clocks


def _computed(operator: ast.operator, left: float, right: float) -> float | None:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
    return left / right if right else None


def findings(source: str) -> list[Finding]:
    """Return what is wrong in a module, of what a test of an examined tier runs; in the order of the lines."""
    tree = ast.parse(source)
    return _findings(tree, _examined(tree))


def report(files: dict[Path, str], helpers: dict[Path, str]) -> list[str]:
    """Return `file:line: reason` for each finding in modules by their paths, and in what tests of any tier call; to
    have examined no test is a mistake."""
    trees = {path: ast.parse(source) for path, source in (files | helpers).items()}
    examined = {path: _examined(tree) for path, tree in trees.items() if path in files}
    if not any(examined.values()):
        raise ValueError("no test of the examined tiers was found, so nothing was examined")
    examined |= {path: list(_statements(trees[path], set())) for path in helpers}
    return [
        f"{path}:{each.line}: {each.reason}" for path, tree in trees.items() for each in _findings(tree, examined[path])
    ]


def _findings(tree: ast.Module, examined: list[ast.stmt]) -> list[Finding]:
    module = _Module.of(tree)
    found = {finding for node in examined for rule in RULES for finding in rule(module, node)}
    return sorted(found, key=lambda finding: (finding.line, finding.reason))


def _examined(tree: ast.Module) -> list[ast.stmt]:
    """Return the tests of examined tiers, and with at least one of them all that is not a test; else nothing."""
    tiers = {name: named or EXAMINED for name, named in tiers_in(tree).items()}
    wanted = {name for name, named in tiers.items() if named & EXAMINED and not named & NO_TIER_NEEDED}
    return list(_statements(tree, tiers.keys() - wanted)) if wanted else []


def _statements(node: ast.Module | ast.ClassDef, unwanted: set[str], prefix: str = "") -> Iterator[ast.stmt]:
    for each in node.body:
        if isinstance(each, ast.ClassDef):
            yield from _statements(each, unwanted, f"{each.name}.")
        elif not isinstance(each, FUNCTIONS) or prefix + each.name not in unwanted:
            yield each


@lru_cache(maxsize=1)
def _nodes(statement: ast.stmt) -> list[ast.AST]:
    """Return a statement and all that is below it; each rule asks for the same one in turn."""
    return list(ast.walk(statement))


# -- the rules


def clock_against_constant(module: _Module, statement: ast.stmt) -> Iterator[Finding]:
    """Find assertions that compare what stems from a clock of the machine with a constant."""
    checks = [node for node in _nodes(statement) if isinstance(node, ast.Assert)]
    timed = _timed_names(module, statement) if checks else set()
    for check in checks:
        for node in ast.walk(check.test):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            is_timed = any(_stems(module, timed, side) for side in sides)
            if is_timed and any(module.is_constant(side) for side in sides):
                yield Finding(node.lineno, "an assertion compares the machine's clock with a constant")
            if _is_call(node, "approx") and any(_stems(module, timed, each) for each in node.args):
                yield Finding(node.lineno, "an assertion compares the machine's clock approximately")


def fixed_sleep(_module: _Module, statement: ast.stmt) -> Iterator[Finding]:
    """Find sleeps of a test, a fixture or a helper that no polling loop repeats.

    A fake's method or a thread's function that sleeps makes something slow, and is no wait.
    """
    is_method = isinstance(statement, FUNCTIONS) and any(each.arg == "self" for each in statement.args.args[:1])
    for node in [] if is_method and not statement.name.startswith("test") else _outside_loops(statement):
        if isinstance(node, ast.Expr) and _sleeps(node.value):
            yield Finding(node.lineno, "a fixed sleep; wait for what has to come")


def short_deadline(module: _Module, statement: ast.stmt) -> Iterator[Finding]:
    """Find deadlines that a busy machine exceeds; a wait below a second, and no assertion itself, is a poll."""
    asserted = {id(node) for each in _nodes(statement) if isinstance(each, ast.Assert) for node in ast.walk(each.test)}
    for node in (each for each in _nodes(statement) if isinstance(each, ast.Call)):
        given = _deadline(node)
        seconds = None if given is None else module.number(given)
        is_poll = seconds is not None and seconds < 1 and (seconds <= 0 or id(node) not in asserted)
        if seconds is not None and not is_poll and seconds < SHORTEST_DEADLINE:
            yield Finding(node.lineno, f"a deadline of {seconds:g} s; give at least {SHORTEST_DEADLINE} s")


def deadline_of_hypothesis(_module: _Module, statement: ast.stmt) -> Iterator[Finding]:
    """Find settings of Hypothesis that bring back a deadline, a check of the time, or other examples in each run."""
    for node in _nodes(statement):
        for keyword in node.keywords if _is_call(node, "settings") else []:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ...
            if keyword.arg == "deadline" and value is not None:
                yield Finding(node.lineno, "Hypothesis has a deadline for each example")
            if keyword.arg == "derandomize" and value is not True:
                yield Finding(node.lineno, "Hypothesis draws other examples in each run; the profile decides that")
            if keyword.arg == "suppress_health_check" and not _suppresses_slowness(keyword.value):
                yield Finding(node.lineno, "Hypothesis minds that examples are drawn slowly: suppress `too_slow` too")


RULES: tuple[Callable[[_Module, ast.stmt], Iterator[Finding]], ...] = (
    clock_against_constant,
    fixed_sleep,
    short_deadline,
    deadline_of_hypothesis,
)


# -- the parts of the rules


def _timed_names(module: _Module, statement: ast.stmt) -> set[str]:
    """Return the names, with dots or without, that are assigned what stems from a clock."""
    timed: set[str] = set()
    before = None
    if not any(module.reads_clock(node) for node in _nodes(statement)):
        return timed
    while before != timed:
        before = set(timed)
        for node in _nodes(statement):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                if node.value is not None and _stems(module, timed, node.value):
                    timed |= {name for target in _targets(node) for name in _names(target)}
            elif isinstance(node, (ast.comprehension, ast.For)) and _stems(module, timed, node.iter):
                timed |= set(_names(node.target))
            elif _collects(node) and any(_stems(module, timed, each) for each in node.args):
                timed |= set(_names(node.func.value))
    return timed


def _suppresses_slowness(checks: ast.expr) -> bool:
    """Return True if the suppressed health checks, where they are listed, have the one that measures time."""
    if not isinstance(checks, (ast.List, ast.Tuple)):
        return True
    return any(ast.unparse(each).endswith((".too_slow", "*HealthCheck")) for each in checks.elts)


def _collects(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COLLECTS


def _stems(module: _Module, timed: set[str], node: ast.AST) -> bool:
    """Return True if an expression is a time of a clock, or is computed from one."""
    if module.reads_clock(node):
        return True
    match node:
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in timed
        case ast.Call(func=ast.Attribute(value=value)):
            parts = [value]  # such as a difference's total_seconds()
        case ast.Call(func=ast.Name(id=name), args=arguments):
            parts = arguments if name in _KEEPS_TIMES else []
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
            parts = [element]
        case ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.Subscript() | ast.Starred() | ast.NamedExpr():
            parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        case ast.Tuple() | ast.List() | ast.Set():
            parts = node.elts
        case _:
            parts = []
    return any(_stems(module, timed, each) for each in parts)


def _targets(node: ast.stmt | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Name, ast.Attribute)):
        yield ast.unparse(target)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _names(each)


def _outside_loops(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is below a node, without what a `while` repeats and without the functions and classes in it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, (ast.While, ast.Lambda, ast.ClassDef, *FUNCTIONS)):
            yield from _outside_loops(each)


def _sleeps(node: ast.AST) -> bool:
    """Return True if an expression sleeps: the length does not matter, and neither does the result of a wait."""
    call = node.value if isinstance(node, ast.Await) else node
    if not isinstance(call, ast.Call):
        return False
    on_new_event = isinstance(call.func, ast.Attribute) and _is_call(call.func.value, "Event")
    return _is_call(call, "sleep") or (_is_call(call, "wait") and on_new_event)


def _deadline(call: ast.Call) -> ast.expr | None:
    name = _called(call)
    by_name = [each.value for each in call.keywords if each.arg == _DEADLINE_BY_NAME.get(name, "timeout")]
    if by_name:
        return by_name[0] if name in _DEADLINE_BY_NAME or name in _DEADLINE_FIRST else None
    is_method = isinstance(call.func, ast.Attribute)
    return call.args[0] if name in _DEADLINE_FIRST and is_method and call.args else None


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _called(node) == name


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
