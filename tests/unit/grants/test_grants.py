"""The output of `harvest grants`, without servers: ACLs by configuration, and commands that say the same."""

import json
import shlex
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.config import HarvestConfig
from harvest_lib.config.choices import ReadingMode
from harvest_lib.consume import consumer_grants
from harvest_lib.grants import Grants
from harvest_lib.grants.kafka import commands, consumer_acls, harvester_acls, reader_acls
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.record import INTERNAL_TOPICS

pytestmark = pytest.mark.quick


def resources(acls):
    return {(acl.resource, acl.name, acl.operation) for acl in acls}


def test_acls_follow_the_configuration():
    neli = resources(harvester_acls(HarvestConfig(leader_group_id="g", leadership="neli"), "User:h", ["orders"]))
    assert ("topic", "g.neli", "Create") in neli
    assert ("group", "g", "Read") in neli
    assert not [each for each in neli if each[0] == "transactional-id"]
    solo = HarvestConfig(leadership="solo", leader_group_id="g", delivery="transactional")
    transactional = resources(harvester_acls(solo, "User:h", ["orders"], creates=False))
    assert ("transactional-id", "g.default.checkpoint.", "Write") in transactional
    assert not [each for each in transactional if "neli" in each[1] or each[2] in ("Create", "Alter")]
    assert ("topic", "orders", "Create") not in neli | transactional


def test_the_commands_say_what_the_data_says():
    config = HarvestConfig(leader_group_id="g; rm -rf $HOME", leader_topic="neli", delivery="barrier")
    acls = harvester_acls(config, "User:h 'x'", ["orders", "shop.*", "*"]) + reader_acls(config, "User:r", ["orders"])
    said = set()
    for line in commands(acls, servers="k:9092"):
        words = shlex.split(line)
        given = list(pairwise(words))
        known = dict(given)
        (resource,) = {"--topic", "--group", "--transactional-id"} & set(words)
        prefixed = known.get("--resource-pattern-type") == "prefixed"
        denied = "--deny-principal" in known
        principal = known["--deny-principal" if denied else "--allow-principal"]
        for option, operation in given:
            if option == "--operation":
                said.add((principal, resource[2:], known[resource], prefixed, operation, denied))
    assert said == {(acl.principal, acl.resource, acl.name, acl.prefixed, acl.operation, acl.denied) for acl in acls}
    assert ("User:h 'x'", "topic", "shop.", True, "Write", False) in said
    assert ("User:h 'x'", "topic", "*", False, "Write", False) in said
    assert ("User:h 'x'", "topic", "__consumer_offsets", False, "Write", True) in said


def test_acls_of_a_consumer():
    plain = resources(consumer_acls("counts", "User:c", ["orders"], published=["derived"]))
    assert plain == {
        *{("topic", "orders", operation) for operation in ("Read", "Describe")},
        *{("topic", "derived", operation) for operation in ("Write", "Describe")},
        ("group", "counts", "Read"),
    }
    recorded = consumer_acls("counts", "User:c", ["orders"], logs=["counts-log"])
    assert ("topic", "counts-log", "Write") in resources(recorded)
    assert {acl.name for acl in recorded if acl.prefixed} == {"counts/"}


def test_no_name_is_in_a_comment_of_a_consumer_s():
    script = consumer_grants("named\nrole", "named\nschema.named", key_values=True)
    comments = [line for line in script.splitlines() if "--" in line]
    assert comments
    assert not [line for line in comments if "named" in line]
    assert 'ON "named\nschema"."named_state" TO "named\nrole";' in script
    assert 'ON "named.too"."named_state" TO' in consumer_grants("role", '"named.too".named', key_values=True)


def test_beginnings_of_names_do_not_reach_topics_that_are_not_for_applications(monkeypatch):
    """Kafka's own, and those of a pool's election and checkpoints; a harvester needs the latter."""
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "shop")
    monkeypatch.setenv("HARVEST_DELIVERY", "transactional")
    monkeypatch.setenv("HARVEST_LEADERSHIP", "neli")

    def denied(*arguments):
        result = CliRunner().invoke(app, ["grants", *arguments, "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert {(each["operation"], each["prefixed"]) for each in found if each["denied"]} <= {("Write", False)}
        return {each["name"] for each in found if each["denied"]}

    own = {"shop.neli", "shop.default.checkpoint"}
    consumer = ["consumer", "kafka", "--name", "c", "--topic", "orders"]
    assert denied(*consumer, "--publish", "*") == {*INTERNAL_TOPICS, *own}
    assert denied(*consumer, "--publish", "shop.*") == own
    assert denied(*consumer, "--log", "__c*") == {"__consumer_offsets", "__cluster_metadata"}
    assert denied(*consumer, "--publish", "shop.orders") == set()
    assert denied("kafka", "--topic", "*") == INTERNAL_TOPICS
    assert denied("kafka", "--topic", "shop.*") == set()
    printed = CliRunner().invoke(app, ["grants", *consumer, "--publish", "shop.*"]).stdout
    assert "--deny-principal User:consumer --operation Write --topic shop.neli" in printed


@pytest.mark.parametrize(
    ("command", "several", "each"),
    [
        ("kafka", "--topic=orders,refunds, carts.*", "--topic=orders --topic=refunds --topic=carts.*"),
        ("kafka", "--topic=orders , refunds,orders", "--topic=orders --topic=refunds"),
        ("consumer kafka --name=c", "--topic=orders,refunds", "--topic=orders --topic=refunds"),
        ("consumer kafka --name=c --topic=a", "--publish=orders,refunds", "--publish=orders --publish=refunds"),
        ("consumer kafka --name=c --topic=a", "--log=orders,refunds", "--log=orders --log=refunds"),
    ],
)
def test_topics_may_have_commas_between_them(command, several, each, monkeypatch):
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "shop")
    monkeypatch.setenv("HARVEST_SOURCE", "snapshot")

    def acls(*arguments):
        result = CliRunner().invoke(app, ["grants", *command.split(), *arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    found = acls(several)
    assert found == acls(*each.split())
    assert {"orders", "refunds"} <= {acl["name"] for acl in found}


@pytest.mark.parametrize("way", [("mark", "barrier"), ("mark", "sequenced"), ("snapshot", "sequenced")])
def test_no_name_is_in_a_comment(way):
    """A line break in one would end it."""
    script = Grants(
        outbox=OutboxTable(("named",)),
        mode=ReadingMode.of(*way),
        harvester="named_h",
        reader="named_r",
        writers={"named_w": ["named_t"]},
        subscriptions=["named_s"],
    ).script()
    comments = [line for line in script.splitlines() if "--" in line]
    assert comments
    assert not [line for line in comments if "named" in line]


def test_a_hostile_subscription_is_quoted():
    """The command refuses it; a program of one's own may pass it on."""
    script = Grants(
        outbox=OutboxTable(("outbox",)),
        mode=ReadingMode.of("snapshot", "transactional"),
        harvester="harvester",
        reader="",
        writers={},
        subscriptions=["a'; DROP TABLE canary; --"],
    ).script()
    assert "[''a''''; DROP TABLE canary; --'']" in script, "quoted twice: the statement is a text itself"
    assert script.count("DROP TABLE") == script.count("''''; DROP TABLE")


@pytest.mark.parametrize(
    "arguments",
    [
        ["kafka", "--topic", "no such"],
        ["kafka", "--topic", "orders,"],
        ["kafka", "--topic", "orders,no such"],
        ["kafka", "--topic", ","],
        ["consumer", "kafka", "--name", "n", "--topic", "orders", "--publish", "states,"],
        ["kafka", "--topic", "orders", "--harvester", "User:"],
        ["postgres", "--source", "mark", "--writer", ""],
        ["postgres", "--source", "mark", "--writer", "writer", "--writer", " "],
        ["consumer", "postgres", "--role", ""],
        ["consumer", "kafka", "--name", "n", "--topic", "orders", "--principal", ""],
        ["postgres", "--source", "mark", "--allow", "writer=no such"],
        ["postgres", "--source", "mark", "--allow", "stranger=orders"],
    ],
)
def test_what_is_not_understood_is_refused(arguments, monkeypatch):
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "g")
    refused = CliRunner().invoke(app, ["grants", *arguments])
    assert refused.exit_code == 2
    assert "next step:" in refused.output


@pytest.mark.parametrize("options", [["--writer", "harvester"], ["--reader", "harvester"], ["--writer", "reader"]])
def test_a_role_has_one_part(options, tmp_path):
    """The rules of a second one would undo those of the first."""
    file = tmp_path / "harvest.yaml"
    file.write_text("harvest:\n  leaderGroupID: g\n  source: mark\n")
    result = CliRunner().invoke(app, ["grants", "postgres", "-f", str(file), *options])
    assert result.exit_code == 2
    assert "is used for two parts" in result.output


@pytest.mark.parametrize(("delivery", "has_checkpoints"), [("auto", False), ("barrier", False), ("sequenced", True)])
def test_a_marked_table_has_tables_of_checkpoints_only_where_they_are_kept(delivery, has_checkpoints, monkeypatch):
    monkeypatch.setenv("HARVEST_DELIVERY", delivery)
    result = CliRunner().invoke(app, ["grants", "postgres", "--source", "mark"])
    assert result.exit_code == 0, result.output
    assert ("for mirrored checkpoints" in result.stdout) is has_checkpoints
