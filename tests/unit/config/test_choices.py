"""Values of the three `auto`: every table, with every setting of source, delivery and leadership."""

from itertools import product
from typing import get_args

import pytest

from harvest_lib import HarvestConfig
from harvest_lib.config.choices import NAMED, Delivery, Leadership, ReadingMode, Source, Table, choose

pytestmark = pytest.mark.quick

AUTO = "auto"
TABLES = get_args(Table)
SOURCES, DELIVERIES, LEADERSHIPS = ((AUTO, *get_args(each)) for each in (Source, Delivery, Leadership))

# With `auto` left in all three.
DEFAULTS = {
    "native": ("snapshot", "transactional", "postgres"),
    "mapped": ("snapshot", "transactional", "postgres"),
    "goharvest": ("mark", "barrier", "neli"),
}
# By the source that is used.
DELIVERED_BY = {"mark": "barrier", "snapshot": "transactional", "transaction_id": "transactional"}
LOCKED = {(source, by) for source in ("snapshot", "transaction_id") for by in ("transactional", "sequenced")}


def used(choices):
    return choices.source, choices.delivery, choices.leadership


def test_the_settings_are_those_of_the_configuration():
    fields = HarvestConfig.model_fields
    for name, settings in (("source", SOURCES), ("delivery", DELIVERIES), ("leadership", LEADERSHIPS)):
        assert set(get_args(fields[name].annotation)) == set(settings)
        assert fields[name].default == AUTO


@pytest.mark.parametrize("table", TABLES)
def test_by_default_the_table_decides(table):
    assert used(choose(table)) == DEFAULTS[table]


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_on_every_table(table):
    for source, delivery, leadership in product(SOURCES, DELIVERIES, LEADERSHIPS):
        found = choose(table, source=source, delivery=delivery, leadership=leadership)
        reads = source if source != AUTO else DEFAULTS[table][0]
        by = delivery if delivery != AUTO else DELIVERED_BY[reads]
        elects = leadership if leadership != AUTO else ("postgres" if (reads, by) in LOCKED else "neli")
        assert used(found) == (reads, by, elects)
        reasons = found.source_reason, found.delivery_reason, found.leadership_reason
        for setting, reason in zip((source, delivery, leadership), reasons, strict=True):
            assert (reason == NAMED) == (setting != AUTO)


def test_a_named_source_needs_no_table():
    for source, delivery, leadership in product(SOURCES[1:], DELIVERIES, LEADERSHIPS):
        settings = {"source": source, "delivery": delivery, "leadership": leadership}
        assert {choose(table, **settings) for table in TABLES} == {choose(None, **settings)}
    with pytest.raises(ValueError, match="the table decides"):
        choose(None)


def test_shards_are_shared_by_processes_unless_the_lock_is_named():
    assert used(choose("native", shards=2)) == ("snapshot", "transactional", "neli")
    assert used(choose("native", shards=2, leadership="postgres")) == ("snapshot", "transactional", "postgres")


@pytest.mark.parametrize("table", TABLES)
def test_parts_that_mark_are_delivered_as_what_is_marked(table):
    assert used(choose(table, marks=True)) == DEFAULTS["goharvest"]
    assert used(choose(table, marks=True, source="snapshot")) == DEFAULTS["native"]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mapped", [None, {"id": "number"}])
@pytest.mark.parametrize("parking", ["hold_key", "stop"])
def test_the_mode_is_what_the_settings_do_to_the_tables(source, delivery, mapped, parking):
    given = HarvestConfig(leadership="solo", leader_group_id="g", delivery=delivery, parking=parking, columns=mapped)
    config = given.model_copy(update={"source": source})
    if source == AUTO and mapped is None:
        with pytest.raises(ValueError, match="the table decides"):
            config.mode  # noqa: B018 - it raises
        return
    marks = source == "mark"
    assert config.mode == ReadingMode(
        marks=marks,
        keeps_checkpoints=not marks or delivery in {"transactional", "sequenced"},
        reads_segments=not marks and mapped is None,
        parks_rows=marks and parking != "stop",
    )


def test_they_are_said_with_their_reasons():
    assert str(choose("goharvest", leadership="solo")) == (
        "source mark (the table has goharvest's layout), delivery barrier (marked records are purged once "
        f"they are acknowledged), leadership solo ({NAMED})"
    )
