"""Errors that only a Spark job raises, and `of`, which finds an error in what Spark raises.

All other errors are in `harvest_lib.errors`.
"""

import re
from collections.abc import Iterator

from harvest_lib.errors import ConfigError, DatabaseError, HarvestError


class SourceError(HarvestError):
    """The source of a batch is missing, or is not as it should be: the message names the source and the fault."""

    exit_code = 3


class BatchConflict(HarvestError):
    """A batch id that was promoted before now has other data: give the new data a new batch id."""

    exit_code = 8


class PromotionRefused(DatabaseError):
    """The data in Postgres differs from what Spark computed, so nothing was promoted: run the batch again."""


class EmptyBatch(HarvestError):
    """The frame has no rows, which is unexpected for a batch that is due: check its source."""

    exit_code = 3


_RAISED = re.compile(
    r"harvest_lib(?:\.\w+)*\.(\w+): ([^\n]+)(?:\n  evidence: (.*?))?\n  next step: (.*?)(?=\n[\n\t\S]|\Z)", re.DOTALL
)
_FIELD = re.compile(r"field `([^`]*)`")


def of(error: BaseException) -> HarvestError | None:
    """Return the error of this library that Spark raised as an exception of its own; None if it was none of ours.

    Spark turns what is raised in a task or a plan of a data source into text. The returned error has the same class,
    cause, evidence and next step, so that a job can tell a BatchConflict from a DatabaseUnavailable:

        try:
            frame.write.format("outbox").mode("append").save()
        except Exception as error:
            if not isinstance(errors.of(error), BatchConflict):
                raise
    """
    if isinstance(error, HarvestError):
        return error
    kinds = {kind.__name__: kind for kind in _kinds(HarvestError)}
    for name, cause, evidence, next_step in reversed(_RAISED.findall(str(error))):
        if (kind := kinds.get(name)) is None:
            continue
        if issubclass(kind, ConfigError):
            field = _FIELD.search(evidence)
            return kind(cause, field=field[1] if field else "", next_step=next_step)
        made = kind.__new__(kind)
        HarvestError.__init__(made, cause, evidence=evidence, next_step=next_step)
        return made
    return None


def _kinds(kind: type[HarvestError]) -> Iterator[type[HarvestError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
