"""Loads transforms from entries of a declaration such as `{pick: [a, b]}` or `{call: shop.cleaning:without_tests}`.

Invalid entries raise NotATransform with a description of the fault; the module `declaration` reports the fault with the
entry's line.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harvest_lib.pipeline.transforms import Transform
from harvest_lib.pipeline.transforms.ready import REDACTED, CloudEvents, Omit, Pick, Redact, Rename, Route


class NotATransform(ValueError):
    """An entry of a declaration is not a valid transform. The text describes the fault."""


_Make = Callable[[Any], Transform]


def load(entry: object, *, beside: Path | None = None) -> tuple[str, Transform]:
    """Return two values for the transform that an entry declares: its name for operators, and its function.

    Modules of custom functions are also searched in the folder `beside`. Raises NotATransform.
    """
    if not isinstance(entry, dict) or not entry:
        raise NotATransform(f"is not a transform: write one of {', '.join(READY)}, call, with its settings")
    if "call" in entry:
        return _call(entry, beside)
    if len(entry) > 1:
        raise NotATransform(f"has {len(entry)} transforms in one entry: begin each with its own `-`")
    ((name, settings),) = entry.items()
    if name not in READY:
        raise NotATransform(f"`{name}` is no transform: write one of {', '.join(READY)}, call")
    return _described(name, settings), READY[name](settings)


def _call(entry: Mapping[str, Any], beside: Path | None) -> tuple[str, Transform]:
    if unknown := sorted(str(key) for key in entry.keys() - {"call", "with"}):
        raise NotATransform(f"has `{unknown[0]}` beside `call`: it takes `with` alone")
    path, given = entry["call"], entry.get("with")
    if given is not None and not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
        raise NotATransform("`with` is not a mapping of names to values")
    function = imported(path, beside=beside)
    return str(path), partial(function, **given) if given else function


def imported(path: object, *, beside: Path | None = None) -> Transform:
    """Return the function at an import path such as `package.module:name`. The folder `beside` is added to `sys.path`.
    Raises NotATransform."""
    module_name, colon, name = str(path).partition(":")
    if not isinstance(path, str) or not (colon and module_name and name):
        raise NotATransform("is not an import path: write `package.module:function`")
    if beside is not None and str(beside) not in sys.path:
        sys.path.append(str(beside))
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise NotATransform(f"cannot import `{module_name}`: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotATransform(f"`{module_name}` has no `{name}`")
        found = getattr(found, part)
    if not callable(found):
        raise NotATransform(f"`{path}` is no function, but a {type(found).__name__}")
    called: Transform = found
    return called


def _texts(settings: object) -> list[str]:
    found = [settings] if isinstance(settings, str) else settings
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise NotATransform("needs the names of fields: write `[one, another]`")
    if len(set(found)) < len(found):
        raise NotATransform("names a field twice")
    return found


def _pick(settings: object) -> Transform:
    return Pick(_texts(settings))


def _omit(settings: object) -> Transform:
    return Omit(frozenset(_texts(settings)))


def _rename(settings: object) -> Transform:
    if not isinstance(settings, dict) or not settings or not all(map(_is_text, [*settings, *settings.values()])):
        raise NotATransform("needs old and new names: write `{old: new}`")
    if len(set(settings.values())) < len(settings):
        raise NotATransform("gives two fields one name")
    return Rename(settings)


def _redact(settings: object) -> Transform:
    if not isinstance(settings, dict):
        return Redact(_texts(settings))
    _known(settings, {"fields", "by"}, needed="fields")
    return Redact(_texts(settings["fields"]), settings.get("by", REDACTED))


def _route(settings: object) -> Transform:
    if isinstance(settings, str) and settings:
        return Route(to=settings)
    if not isinstance(settings, dict):
        raise NotATransform("needs a namespace, or `{find: expression, to: namespace}`")
    _known(settings, {"find", "to"}, needed="to", texts=True)
    try:
        return Route.parse(settings["to"], settings.get("find"))
    except ValueError as error:
        raise NotATransform(str(error)) from error


def _cloud_events(settings: object) -> Transform:
    if isinstance(settings, str) and settings:
        return CloudEvents(settings)
    if not isinstance(settings, dict):
        raise NotATransform("needs `{source: reference}`, and may have `type` and `subject`")
    _known(settings, {"source", "type", "subject"}, needed="source", texts=True)
    return CloudEvents(**settings)


READY: Mapping[str, _Make] = {
    "pick": _pick,
    "omit": _omit,
    "rename": _rename,
    "redact": _redact,
    "route": _route,
    "cloud_events": _cloud_events,
}
"""Factories of the built-in transforms, by their name in a declaration."""


def is_ready(transform: Transform) -> bool:
    """Return True for a built-in transform, which never modifies the message it gets."""
    return isinstance(transform, Pick | Omit | Rename | Redact | Route | CloudEvents)


def _known(settings: Mapping[Any, Any], known: set[str], *, needed: str, texts: bool = False) -> None:
    if unknown := sorted(str(key) for key in settings.keys() - known):
        raise NotATransform(f"does not know `{unknown[0]}`: it takes {', '.join(sorted(known))}")
    if needed not in settings:
        raise NotATransform(f"lacks `{needed}`")
    if texts and not all(_is_text(each) for each in settings.values()):
        raise NotATransform("needs text for each of its settings")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _described(name: str, settings: object) -> str:
    """Return a built-in transform's name for operators. It includes the settings that distinguish the transform."""
    if name == "route":
        to = settings if isinstance(settings, str) else settings.get("to") if isinstance(settings, dict) else ""
        return f"route to {to}"
    fields = settings.get("fields") if name == "redact" and isinstance(settings, dict) else settings
    if name == "rename" and isinstance(fields, dict):
        return f"rename {', '.join(f'{old} to {new}' for old, new in fields.items())}"
    if name != "cloud_events" and isinstance(fields, list):
        return f"{name} {', '.join(map(str, fields))}"
    return f"{name} {fields}" if name != "cloud_events" else "cloud_events"
