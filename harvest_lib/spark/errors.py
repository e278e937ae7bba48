"""Errors that only a Spark job raises. All other errors are in `harvest_lib.errors`."""

from harvest_lib.errors import DatabaseError, HarvestError


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
