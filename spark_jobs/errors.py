"""What only a Spark job can refuse; the rest is in `harvest_lib.errors`."""

from harvest_lib.errors import DatabaseError, HarvestError


class SourceError(HarvestError):
    """The source file is missing, or is not what it should be: the message names the file and the offending content."""

    exit_code = 3


class BatchConflict(HarvestError):
    """A batch id that was promoted before stands for other data now: give the new data a new batch id."""

    exit_code = 8


class PromotionRefused(DatabaseError):
    """What stands in Postgres is not what Spark computed, so nothing was promoted: run the batch again."""
