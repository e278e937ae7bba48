"""`harvest run` with a producer that fails: `python -m support.faulty_member --rate 0.02 --seed 1 -f reaper.yaml`."""

import argparse
import signal

from support.faulty import FaultyProducers

from harvest_lib.cli.log_output import configure_logging
from harvest_lib.config import load
from harvest_lib.harvester.harvest import Harvest, State


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("-f", dest="config", required=True)
    parser.add_argument("--log-format", default="json")
    asked = parser.parse_args()
    configure_logging(asked.log_format, "info")
    producers = FaultyProducers(rate=asked.rate, seed=asked.seed)
    harvest = Harvest(load(asked.config).harvest, kafka_producer_provider=producers)
    signal.signal(signal.SIGTERM, lambda *_: harvest.stop())
    with harvest:
        while harvest.state is State.RUNNING:
            harvest.await_stopped(0.2)


if __name__ == "__main__":
    main()
