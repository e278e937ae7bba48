"""Base of the models of settings: both spellings of a field, a single error for all problems, no change, no secrets."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import AliasGenerator, BaseModel, ConfigDict, ValidationError

from harvest_lib.config.problems import Origins, Place, Problem, config_error, problems_of, unknown
from harvest_lib.config.spelling import goharvest_name, goharvest_names

_MERGED = ("base_kafka_config", "producer_kafka_config", "limits")


class Settings(BaseModel):
    """Settings that are checked whole. Raises ConfigError with everything that is wrong, and never with a value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        alias_generator=AliasGenerator(serialization_alias=goharvest_name),
    )

    def __init__(self, **values: Any) -> None:
        given, problems = to_field_names(type(self), values)
        self._check(given, problems, Origins())

    def _check(self, values: Mapping[str, Any], problems: Iterable[Problem], origins: Origins) -> None:
        """Take values by the names of fields, unless there are problems, earlier problems included."""
        found = list(problems)
        try:
            super().__init__(**values)
        except ValidationError as error:
            found += problems_of(error)
        if found:  # outside the handler: pydantic's error carries values, and is no context of this error
            raise config_error(found, origins)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse; pydantic's own refusal would show the value."""
        raise AttributeError(f"{type(self).__name__} is frozen, `{name}` too: make another one")


def to_field_names(
    model: type[BaseModel], values: Mapping[Any, Any], *, elsewhere: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Rename the keys of Python values to field names; both spellings are understood, and None means the default.

    Keys that no field has, and fields given twice, are left out and returned as problems. `elsewhere` maps a key to
    the place where it would be right.
    """
    spellings = goharvest_names(model) | {name: name for name in model.model_fields}
    renamed: dict[str, Any] = {}
    problems = []
    for key, value in values.items():
        name = spellings.get(key)
        if name is None:
            problems.append(unknown(str(key), model.model_fields, elsewhere=elsewhere))
        elif name in renamed:
            problems.append(
                Problem(path=(name,), message="is given twice, in two spellings", remedy="keep one of them")
            )
        elif value is not None:
            renamed[name] = value
    return renamed, problems


def merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Put values by the names of fields over each other, the last on top: `_MERGED` by entries, the rest whole."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = found.get(name)
            if name in _MERGED and isinstance(below, Mapping) and isinstance(value, Mapping):
                found[name] = {**below, **value}
            else:
                found[name] = value
    return found


def paths(values: Mapping[str, Any]) -> set[Place]:
    """Return the paths of all given values, with a path for each entry of a mapping."""
    found: set[Place] = set()
    for name, value in values.items():
        found |= {(name, str(key)) for key in value} if isinstance(value, Mapping) else {(name,)}
    return found
