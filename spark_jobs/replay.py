"""Fill a new subscription's topics: `spark-submit spark_jobs/replay.py --help`."""

import sys

from harvest_lib.spark.replay.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
