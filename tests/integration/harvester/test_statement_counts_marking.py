"""Cost of a drain in the database, by count: a gate that the machine's mood does not move."""

import pytest
from support.counting import CountingSource
from support.outbox import harvest_config

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.quick

_STATEMENTS_PER_1000 = 12
"""Seen on two busy cores: 1.8 to 3 where no key repeats, 5 to 8 where each does ten times, which takes ten rounds.
Purged singly, or marked by the default 100, it would be 1,001 and 11 or more."""


@pytest.mark.parametrize("keys", [5_000, 500])
def test_statements_per_1000_records(outbox, bootstrap_servers, group_id, keys):
    outbox.fill(5_000, keys=keys, value_bytes=200)
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo")
    conninfo = config.data_source.conninfo()
    source = CountingSource(MarkSource(conninfo, outbox.name.identifier, outbox.name.parked.identifier))
    assert Harvest(config, source=source).drain(60).records == 5_000
    assert source.statements["mark"] <= 15, "pages grow from 500 records"
    assert source.statements["reset"] == 0
    assert source.worked / 5 <= _STATEMENTS_PER_1000, source.statements
