"""Errors as an operator raises them: Airflow tries again unless no retry changes the error."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from harvest_lib.airflow.compat import AirflowFailException
from harvest_lib.airflow.outcomes import PERMANENT, REFUSED
from harvest_lib.errors import HarvestError


def raise_outcome(event: Mapping[str, str], kind: type[HarvestError]) -> NoReturn:
    """Raise the error of an outcome that did not succeed, as a `kind`, or as AirflowFailException if no retry changes
    it."""
    error = kind(event["cause"], evidence=event["evidence"], next_step=event["next_step"])
    if event["outcome"] == REFUSED:
        raise AirflowFailException(str(error)) from error
    raise error


@contextmanager
def permanent(*further: type[HarvestError]) -> Iterator[None]:
    """Raise AirflowFailException for an error of the `with` block that no retry changes. `further` are types of such
    errors beside those of `outcomes`."""
    try:
        yield
    except PERMANENT + further as error:
        raise AirflowFailException(str(error)) from error
