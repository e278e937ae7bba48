"""Load the flights of 2013, a day per batch: `spark-submit spark_jobs/flights_by_day.py --help`."""

import sys

from harvest_lib.spark.flights.by_day import main

if __name__ == "__main__":
    sys.exit(main())
