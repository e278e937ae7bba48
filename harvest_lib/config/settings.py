"""Base class of all settings models. A model accepts both spellings of a field, reports all problems in a single error,
is immutable, and hides secrets."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import AliasGenerator, BaseModel, ConfigDict, ValidationError

from harvest_lib.config.problems import Origins, Place, Problem, config_error, problems_of, unknown
from harvest_lib.config.spelling import goharvest_name, goharvest_names

_MERGED = ("base_kafka_config", "producer_kafka_config", "limits")


class Settings(BaseModel):
    """Settings that are checked as a whole. Raises ConfigError with all problems; the error never contains a value."""

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
        """Set the fields from `values`, a mapping by field name. Raises ConfigError if a value is invalid or `problems`
        is not empty."""
        found = list(problems)
        try:
            super().__init__(**values)
        except ValidationError as error:
            found += problems_of(error)
        if found:  # outside the handler: pydantic's error contains values, and must not become this error's context
            raise config_error(found, origins)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse the change; pydantic's own error would show the value."""
        raise AttributeError(f"{type(self).__name__} is frozen, `{name}` too: make another one")


def to_field_names(
    model: type[BaseModel], values: Mapping[Any, Any], *, elsewhere: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Rename keys in either spelling to field names. A value None is left out, so that the field has its default.

    Unknown keys, and fields that are given twice, are left out and returned as problems. `elsewhere` maps a misplaced
    key to the setting that is meant.
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
    """Merge layers of values by field name. A later layer overrides an earlier one: fields in `_MERGED` entry by entry,
    any other field as a whole."""
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
    """Return the paths of all values. For a value that is a mapping, return the path of each of its entries instead."""
    found: set[Place] = set()
    for name, value in values.items():
        found |= {(name, str(key)) for key in value} if isinstance(value, Mapping) else {(name,)}
    return found
