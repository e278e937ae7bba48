"""Load the flights of 2013, a month per batch: `spark-submit spark_jobs/flights_by_month.py --help`."""

import sys

from harvest_lib.spark.flights.by_month import main

if __name__ == "__main__":
    sys.exit(main())
