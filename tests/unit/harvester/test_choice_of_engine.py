"""What a harvester may choose to do with the table that it finds."""

import pytest

from harvest_lib import Harvest, HarvestConfig
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable


@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
def test_shards_are_refused_where_the_source_turns_out_to_be_mark(monkeypatch, delivery):
    monkeypatch.setattr(OutboxTable, "kind", lambda _table, _connection: "goharvest")
    config = HarvestConfig(leader_group_id="g", shards=2, delivery=delivery)
    with pytest.raises(ConfigError, match="one writer"):
        Harvest(config)._choose_engine(None)
