"""Connect to a Kafka that requires TLS and a password (SCRAM-SHA-512), with a setting for producers.

    export KAFKA_USERNAME=alice KAFKA_PASSWORD=…     # from your secret store, never from a file in the repository
    export PGPASSWORD=…
    python docs/examples/sasl_ssl.py

HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS are the addresses of Postgres and Kafka, by default on localhost. KAFKA_CA is
the file of the authority's certificate, by default ca-cert.pem. The outbox must exist (`harvest init`). Ctrl-C or
SIGTERM ends the program.
"""

import os
import signal

from harvest_lib import Harvest, HarvestConfig


def make_config() -> HarvestConfig:
    """Return the configuration. Its `repr`, errors and log lines hide the secrets."""
    return HarvestConfig(
        leader_group_id="example-sasl-ssl",
        base_kafka_config={  # librdkafka's settings, by librdkafka's names, for all clients
            "bootstrap.servers": os.environ.get("HARVEST_BOOTSTRAP_SERVERS", "localhost:9094"),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": os.environ.get("KAFKA_CA", "ca-cert.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": os.environ["KAFKA_USERNAME"],
            "sasl.password": os.environ["KAFKA_PASSWORD"],
        },
        producer_kafka_config={"compression.type": "lz4"},  # for the producers that send records
    )


def main() -> None:
    """Harvest."""
    config = make_config()
    print(config)
    harvest = Harvest(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: harvest.stop())
    with harvest:
        while not harvest.await_stopped(0.2):
            pass


if __name__ == "__main__":
    main()
