"""Kinds of fields in a `defs.yaml`: fields with descriptions, paths, tags, connection strings without secrets."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from harvest_lib.conninfo import has_secret

_VARIABLE = re.compile(r"""\{\{\s*env(?:\.(?P<name>\w+)|\(\s*(?P<quote>["'])(?P<called>\w+)(?P=quote)\s*\))\s*\}\}""")


class Described(dg.Model, dg.Resolvable):
    """Settings whose schema has the docstring of each attribute as its description. Errors quote no value, because a
    value may be a secret."""

    model_config = ConfigDict(use_attribute_docstrings=True, hide_input_in_errors=True)

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model of the YAML, with descriptions and examples. Dagster leaves out those of attributes that
        have a default."""
        derived = super().model()
        for name, field in cls.model_fields.items():
            if (found := derived.model_fields.get(name)) is not None:
                found.description, found.examples = field.description, field.examples
        derived.model_rebuild(force=True)
        return derived


def _beside_the_file(context: dg.ResolutionContext, path: str | None) -> str | None:
    return path if not path or "://" in path else str(context.resolve_source_relative_path(path))


RelativePath = Annotated[str | None, dg.Resolver(_beside_the_file, model_field_type=str | None)]
"""A path. In a `defs.yaml` it is relative to the folder of that file, in Python to the folder of the process. A URL
does not change."""

FolderOrUrl = Annotated[str, dg.Resolver(_beside_the_file, model_field_type=str)]
"""A relative path, or a URL."""

Unresolved = Annotated[
    str | None, dg.Resolver(lambda _, text: text, model_field_type=str | None, inject_before_resolve=False)
]
"""A text whose template is not replaced by a value."""


def _as_written(context: dg.ResolutionContext, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_written(context.at_path(name), each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_written(context.at_path(place), each) for place, each in enumerate(value)]
    return context.resolve_value(value) if isinstance(value, str) and "{{" in value else value


Tags = Annotated[Mapping[str, Any], dg.Resolver(_as_written, model_field_type=Mapping[str, Any])]
"""Tags, whose texts remain texts. Dagster's templates would replace the annotation `"false"` of a pod by a boolean,
which Kubernetes refuses."""


def variable_or_dsn(text: str) -> dg.EnvVar | str:
    """Return an EnvVar for the template of a variable, such as `{{ env.SHOP_DSN }}`, else the connection string.

    Raises ValueError, which quotes nothing, for another template and for a connection string with a secret.
    """
    if (found := _VARIABLE.fullmatch(text.strip())) is not None:
        return dg.EnvVar(found["name"] or found["called"])
    if "{{" in text:
        raise ValueError('dsn may be the template of a single variable, such as "{{ env.SHOP_DSN }}", and nothing else')
    if has_secret(text):
        raise ValueError(
            "dsn has a password that Dagster would store and show, or cannot be read: put the connection string into "
            'an environment variable, and write dsn: "{{ env.SHOP_DSN }}" with the name of the variable'
        )
    return text
