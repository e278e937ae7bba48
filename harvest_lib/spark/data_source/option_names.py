"""The names of options: unknown names are refused, with the name that was meant if there is a near one."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from harvest_lib.errors import ConfigError


def named(
    options: Mapping[str, str],
    known: Sequence[str],
    *,
    others: Sequence[str],
    streaming: bool,
    elsewhere: Mapping[str, str],
    what: str,
    more: str = "",
) -> dict[str, str]:
    """Return the options of a read by their names in `known`. Option names are case-insensitive.

    `others` are names of the other kind of read. `elsewhere` maps names of other formats, in lower case, to the option
    that is meant. `what` is the name of the format, `more` a text about further options. Raises ConfigError.
    """
    names = {name.lower(): name for name in known}
    given = {}
    for spelled, value in options.items():
        name = spelled.lower()
        if name in names:
            given[names[name]] = value
            continue
        if name in {each.lower() for each in others}:
            raise ConfigError(
                f"the option {spelled!r} is for spark.{'read' if streaming else 'readStream'} alone",
                field=spelled,
                next_step=f"use {', '.join(known)}",
            )
        meant = near(name, names, elsewhere)
        raise ConfigError(
            f"the format {what} has no option {spelled!r} for reading",
            field=spelled,
            next_step=f"write {meant}" if meant else f"use {', '.join(known)}{more}",
        )
    return given


def near(name: str, names: Mapping[str, str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Return the option that a name in lower case is near to, empty if there is none. `names` maps names in lower case
    to options, `elsewhere` maps names of other formats to options."""
    meant = {**names, **(elsewhere or {})}
    found = get_close_matches(name, meant, n=1)
    return meant[found[0]] if found else ""
