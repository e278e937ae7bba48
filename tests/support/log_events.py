"""The events that the packages log, as their code has them: each call of a module's logger, read from its syntax."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("harvest_lib", "dagster_harvest")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def calls():
    """Yield module, line, level, the event (None if it is not written out there) and the fields of each call; fields
    are None where they are not written out."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in {"_log", "log", "logger"}
                ):
                    module = str(path.relative_to(ROOT))
                    yield module, node.lineno, node.func.attr, *_said(node)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Harmless":
                    yield str(path.relative_to(ROOT)), node.lineno, "exception", node.args[1].value, frozenset()


def _said(node):
    event = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    extra = next((each.value for each in node.keywords if each.arg == "extra"), None)
    if extra is None:  # structlog takes fields as keyword arguments
        return event, frozenset(each.arg for each in node.keywords if each.arg != "exc_info")
    if not isinstance(extra, ast.Dict) or any(key is None or not isinstance(key, ast.Constant) for key in extra.keys):
        return event, None
    return event, frozenset(key.value for key in extra.keys)
