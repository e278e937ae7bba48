"""Adaptors of a package that tests have installed."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from harvest_lib.pipeline.adaptors import Adaptor, Side


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    dsn: SecretStr
    batch_rows: int = Field(default=10, ge=1)
    tables: list[str] = []


def unused(options):
    raise AssertionError(f"nothing is opened by {options}")


BOTH = Adaptor(
    summary="what tests read and write",
    reads=Side(options=Options, make=unused),
    writes=Side(options=Options, make=unused),
)
READS = Adaptor(summary="what tests read", reads=Side(options=Options, make=unused))
