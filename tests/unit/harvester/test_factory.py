"""The parts that a configuration chooses get what it says."""

import pytest

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.pools import make_leadership

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("shards", [1, 3])
def test_a_leadership_is_told_of_the_shards(shards):
    neli = HarvestConfig(leader_group_id="g", shards=shards, leadership="neli")
    assert make_leadership(neli)._settings.shards == shards
    postgres = HarvestConfig(leader_group_id="g", shards=shards, leadership="postgres")
    assert make_leadership(postgres)._settings.shards == shards
    solo = make_leadership(HarvestConfig(shards=shards, leadership="solo"))
    solo.start()
    assert len(solo.terms(0)) == shards
