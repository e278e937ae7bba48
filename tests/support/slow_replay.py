"""`python -m harvest_lib.spark.replay` with transactions of few records, so that it can be killed between them."""

import sys
import time
from collections.abc import Iterator

from harvest_lib.spark.replay import filling, parts
from harvest_lib.spark.replay.__main__ import main


def write_slowly(settings: parts.PartSettings, batches: Iterator) -> Iterator:
    """As `write_parts`."""
    parts._BATCH_RECORDS = 500  # here, as this runs in the worker

    def paused() -> Iterator:
        for batch in batches:
            for start in range(0, batch.num_rows, 500):
                time.sleep(0.1)
                yield batch.slice(start, 500)

    return parts.write_parts(settings, paused())


if __name__ == "__main__":
    filling.write_parts = write_slowly
    sys.exit(main())
