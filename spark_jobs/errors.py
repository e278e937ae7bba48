"""What only a Spark job can refuse; the rest is in `harvest_lib.errors`."""

from harvest_lib.errors import DatabaseError, HarvestError


class SourceError(HarvestError):
    """What a batch is read from is missing, or is not what it should be: the message names it and what is wrong."""

    exit_code = 3


class BatchConflict(HarvestError):
    """A batch id that was promoted before stands for other data now: give the new data a new batch id."""

    exit_code = 8


class PromotionRefused(DatabaseError):
    """What stands in Postgres is not what Spark computed, so nothing was promoted: run the batch again."""


class EmptyBatch(HarvestError):
    """The frame has no rows, which a batch that is due mostly should not have: look at its source."""

    exit_code = 3
