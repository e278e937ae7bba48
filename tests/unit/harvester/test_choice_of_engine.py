"""The choices that a harvester has by the table that it finds."""

import pytest

from harvest_lib import HarvestConfig
from harvest_lib.errors import ConfigError, DatabaseUnavailable, OutboxTableError
from harvest_lib.harvester.assembly.choices import read_choices, resolved
from harvest_lib.harvester.assembly.factory import make_delivery
from harvest_lib.harvester.assembly.pools import make_leadership
from harvest_lib.harvester.housekeeping import table_watch
from harvest_lib.harvester.housekeeping.table_watch import TableWatch
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.quick

TABLE = OutboxTable.parse("outbox")


@pytest.fixture
def of_kind(monkeypatch):
    """Resolve a configuration on a table of a kind."""

    def resolve(kind, **settings):
        monkeypatch.setattr(OutboxTable, "kind", lambda _table, _connection: kind)
        config = HarvestConfig(**{"leader_group_id": "g", **settings})
        return resolved(config, read_choices(config, None, TABLE), TABLE)

    return resolve


@pytest.mark.parametrize("delivery", ["auto", "barrier", "pipelined", "transactional", "sequenced"])
def test_shards_are_refused_where_the_source_turns_out_to_be_mark(of_kind, delivery):
    with pytest.raises(ConfigError, match="one writer"):
        of_kind("goharvest", shards=2, delivery=delivery)


def test_shards_are_refused_where_the_parts_of_an_embedder_mark():
    config = HarvestConfig(leader_group_id="g", source="snapshot", delivery="barrier", leadership="neli", shards=2)
    choices = read_choices(config, None, TABLE, marks=True)
    assert resolved(config, choices, TABLE).shards == 2
    with pytest.raises(ConfigError, match="one writer"):
        resolved(config, choices, TABLE, marks=True)


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("native", ("snapshot", "transactional", "postgres")), ("goharvest", ("mark", "barrier", "neli"))],
)
def test_the_three_are_chosen_from_one_look_at_the_table(of_kind, kind, chosen):
    config = of_kind(kind)
    assert (config.source, config.delivery, config.leadership) == chosen
    assert config.exactly_once == (kind == "native")


@pytest.mark.parametrize("setting", ["delivery", "leadership"])
def test_nothing_is_made_of_a_setting_that_was_not_chosen(setting):
    config = HarvestConfig(leader_group_id="g", **{"source": "snapshot", "delivery": "sequenced", setting: "auto"})
    with pytest.raises(AssertionError, match=f"`{setting}` is still auto"):
        if setting == "leadership":
            make_leadership(config)
        else:
            make_delivery(config, TABLE, None, None, 0, consumer_provider=None, producer_provider=None)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"leadership": "solo", "leader_group_id": ""}, "checkpoint_topic"),
        ({"leadership": "neli", "leader_topic": "t", "checkpoint_topic": "t"}, "checkpoint_topic"),
        ({"producer_kafka_config": {"max.in.flight.requests.per.connection": 5}}, "producer_kafka_config"),
    ],
)
def test_what_does_not_go_with_what_was_chosen_is_refused_on_that_table_alone(of_kind, settings, field):
    of_kind("goharvest", **settings)
    with pytest.raises(ConfigError) as refused:
        of_kind("native", **settings)
    assert refused.value.field.startswith(field)


def test_a_table_that_has_become_native_ends_whoever_chose_to_mark_it(of_kind, monkeypatch):
    config, kinds = HarvestConfig(leader_group_id="g"), iter(["goharvest", "native"])
    of_kind("goharvest")
    watch = TableWatch("", TABLE, read_choices(config, None, TABLE))
    monkeypatch.setattr(OutboxTable, "kind", lambda _table, _connection: next(kinds))
    monkeypatch.setattr(table_watch, "connect", postgres := Connection())
    watch.check()
    postgres.error = DatabaseUnavailable("away", next_step="wait")
    watch.check()  # nothing is known: no reason to end
    postgres.error = None
    with pytest.raises(OutboxTableError, match="restart all processes") as ended:
        watch.check()
    assert "source mark" in ended.value.evidence


class Connection:
    """Stands for `connect` and for what it returns."""

    error = None

    def __call__(self, _conninfo):
        if self.error is not None:
            raise self.error
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None
