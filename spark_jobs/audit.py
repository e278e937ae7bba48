"""Compare committed records with Kafka: `spark-submit spark_jobs/audit.py --help`."""

import sys

from harvest_lib.spark.audit.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
