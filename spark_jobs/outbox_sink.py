"""Write a file into an outbox: `spark-submit spark_jobs/outbox_sink.py --help`."""

import sys

from harvest_lib.spark.outbox_sink import main

if __name__ == "__main__":
    sys.exit(main())
