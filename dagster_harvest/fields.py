"""Kinds of fields in a `defs.yaml`: fields with descriptions."""

import dagster as dg
from pydantic import BaseModel, ConfigDict


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
