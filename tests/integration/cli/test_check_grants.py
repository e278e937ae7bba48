"""`harvest check` on servers that authenticate: each missing grant is named, and the printed grants suffice."""

import json

import pytest
from confluent_kafka.admin import AclOperation
from psycopg import sql
from support.checked import causes
from support.secured import MARK, MARK_BATCHES, OUTBOX, SEQUENCED, SNAPSHOT
from support.waiting import eventually

from harvest_lib.config.choices import ReadingMode
from harvest_lib.grants import harvester_needs, missing_grants
from harvest_lib.grants.kafka import Acl
from harvest_lib.harvester import preflight

pytestmark = pytest.mark.gate


@pytest.mark.full
@pytest.mark.parametrize(
    "way", [MARK, SNAPSHOT, MARK_BATCHES, SEQUENCED], ids=["mark", "snapshot", "mark_batches", "sequenced"]
)
def test_what_grants_prints_is_enough_and_each_part_is_missed(secured, way):
    way = {**way, "leadership": "neli"}
    secured.make(way)
    report = preflight.inspect(secured.config(**way), [secured.topic])
    assert any("lacks privileges" in each or "may not" in each or "beside" in each for each in causes(report))
    (unseen,) = [each for each in report.errors if f"'{secured.topic}'" in each.cause]
    assert "as a user who may create topics: harvest topics create " in unseen.next_step
    assert any("the group" in each for each in causes(report))
    secured.grant(**way)
    secured.permit(**way)
    assert causes(preflight.inspect(secured.config(**way), [secured.topic])) == []


def test_each_grant_that_is_taken_away_is_named(secured):
    secured.prepare(SNAPSHOT)
    needs = harvester_needs(OUTBOX, ReadingMode.of("snapshot", "barrier"))
    with secured.connect("harvester") as connection:
        assert missing_grants(connection, needs) == []
        for need in needs:
            columns = sql.SQL(", ").join(map(sql.Identifier, need.columns))
            part = sql.SQL("({})").format(columns) if need.columns else sql.SQL("")
            for privilege in need.privileges:
                names = (sql.SQL(privilege), part, need.table.identifier)
                secured.owner.execute(sql.SQL("REVOKE {} {} ON {} FROM harvester").format(*names))
                (said,) = missing_grants(connection, needs)
                assert said.startswith(f"GRANT {privilege}")
                secured.owner.execute(said.encode())
                assert missing_grants(connection, needs) == []


@pytest.mark.full
def test_a_topic_that_may_be_seen_and_not_written_to_is_an_error(secured):
    way = {**SNAPSHOT, "leadership": "neli"}
    secured.prepare(way)
    config = secured.config(**way)
    eventually(lambda: causes(preflight.inspect(config, [secured.topic])) == [], "what was granted counts")
    ours = {"principal": "User:harvester", "name": secured.topic, "operation": AclOperation.WRITE}
    with secured.without(lambda acl: all(getattr(acl, name) == value for name, value in ours.items())):
        seen = Acl(principal="User:harvester", resource="topic", name=secured.topic, operation="Describe")
        secured.put_in(json.dumps([seen.as_json()]))
        said = f"this user lacks Write on the topic {secured.topic!r}"
        eventually(lambda: causes(preflight.inspect(config, [secured.topic])) == [said], "it is found")
