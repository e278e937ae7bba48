"""Leadership when the network fails: one member reaches the broker through what the tests break, the other directly."""

import json
from collections import defaultdict
from uuid import UUID

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient
from support.native_outbox import NativeOutbox
from support.outbox import harvest_config, read_topic
from support.waiting import eventually
from support.watch import Watch

from harvest_lib.clock import boot_seconds
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.telemetry.health import HarvestHealth
from harvest_lib.kafka_topics import create_topic
from harvest_lib.leadership import Neli, TermEnd
from harvest_lib.leadership.neli_settings import NeliSettings
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.telemetry.health import Verdict
from infra.chaos.link import Links

pytestmark = pytest.mark.full

HEARTBEAT_TIMEOUT = 1.5


@pytest.fixture(scope="module")
def network():
    """The way to the broker that is broken."""
    with Links() as links:
        yield links.add()


@pytest.fixture(scope="module")
def broker(network, parts, tmp_path_factory):
    """A broker that is reached by that way too."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), parts=parts, detours={"detour": [network.port]})
    try:
        cluster.start()
        network.forward_to("127.0.0.1", cluster.ports["detour-1"])
        yield cluster
    finally:
        cluster.kill()


class Pair:
    """Two members: `far` leads and is reached through the network that breaks, `near` stands by."""

    def __init__(self, network, broker, group_id):
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self._ways = {"far": f"127.0.0.1:{network.port}", "near": broker.bootstrap_servers}
        self._group_id = group_id
        self.members = []

    def join(self, **settings):
        self.far, self.near = (self._member(name, settings) for name in self._ways)
        eventually(lambda: self.size == 2 and self.far.term(0), "both are members, and the far one leads")
        return self.far, self.near

    @property
    def size(self):
        """Members of the group, once it has settled."""
        try:
            group = self._admin.describe_consumer_groups([self._group_id])[self._group_id].result(60)
        except KafkaException:  # a broker that has just started does not coordinate yet
            return 0
        return len(group.members) if group.state is ConsumerGroupState.STABLE else 0

    def _member(self, name, settings):
        chosen = {
            "topic": f"{self._group_id}.neli",
            "group_id": self._group_id,
            "heartbeat_timeout_seconds": HEARTBEAT_TIMEOUT,
            "quiesce_timeout_seconds": 0.0,
            **settings,
        }
        client = {
            "bootstrap.servers": self._ways[name],
            "client.id": name,  # partitions are assigned in this order: the far member leads while both are there
            "socket.max.fails": 0,  # unanswered packets do not end the connection, so that it can be held for long
        }
        member = Neli(NeliSettings(**chosen), client)
        self.members.append(member)
        member.start()
        return member


@pytest.fixture
def pair(network, broker, group_id):
    made = Pair(network, broker, group_id)
    yield made
    network.heal()
    for member in made.members:
        member.stop(60)


def fenced(term):
    """Wait for the end of a term whose leader was cut off a moment ago."""
    eventually(lambda: term.ended, "its leader hears nothing any more")
    assert term.ended is TermEnd.FENCED


def test_a_leader_cut_off_for_less_than_its_session_fences_itself_and_leads_again(pair, network):
    far, near = pair.join(session_timeout_seconds=20.0)
    first = far.term(0)
    with Watch(far, near) as watch:
        network.cut()
        fenced(first)
        network.heal()
        second = far.term(60)
        assert second is not None
        assert second.leader_id != first.leader_id
    assert watch.led[far] == [first.leader_id, second.leader_id]
    assert near not in watch.led, "its leader was never expelled"


def test_a_leader_cut_off_for_longer_than_its_session_is_followed_and_may_come_back(pair, network):
    far, near = pair.join(session_timeout_seconds=6.0)
    first = far.term(0)
    with Watch(far, near) as watch:
        network.cut()
        fenced(first)
        following = near.term(60)
        assert following is not None
        assert far.term(0) is None
        network.heal()
        eventually(lambda: pair.size == 2, "it is a member again")
        assert first.ended is TermEnd.FENCED
        near.stop(60)
        again = eventually(lambda: far.term(0), "the one that is left leads")
    assert again.leader_id not in {first.leader_id, *watch.led[near]}


def test_a_leader_that_lost_its_membership_does_not_wait_for_its_lease_to_run_out(pair, network):
    """The lease outlasts the session here, which the configuration forbids: only the loss can end the term."""
    far, near = pair.join(session_timeout_seconds=2.0, heartbeat_timeout_seconds=60.0)
    first = far.term(0)
    network.cut()
    eventually(lambda: first.ended, "its session is over")
    assert first.ended is TermEnd.FENCED
    assert far.term(0) is None
    assert near.term(60) is not None


@pytest.fixture
def outbox(dsn, broker, unique):
    topic = unique("topic")
    create_topic({"bootstrap.servers": broker.bootstrap_servers}, topic, partitions=1, config={})
    made = NativeOutbox(dsn, topic)
    yield made
    made.close()


@pytest.fixture
def locked_pair(outbox, dsn, network, broker, group_id):
    """Two harvesters that elect by the lock in Postgres: the first leads, and reaches Kafka through the network."""
    ways = f"127.0.0.1:{network.port}", broker.bootstrap_servers
    configs = [
        harvest_config(dsn, way, group_id, name=name, delivery="transactional", leadership="postgres")
        for name, way in zip(("far", "near"), ways, strict=True)
    ]
    with Harvest(configs[0]) as far:
        eventually(lambda: far.is_leader, "the first one leads")
        with Harvest(configs[1]) as near:
            yield far, near
            network.heal()


def test_a_leader_by_lock_that_does_not_reach_kafka_lets_another_lead(outbox, locked_pair, network, broker):
    far, near = locked_pair
    outbox.fill(1, keys=1)
    eventually(lambda: far.delivered_records == 1, "it delivers")
    network.cut()
    outbox.fill(1, keys=1)
    eventually(lambda: near.delivered_records == 1, "the other one delivers")
    assert not far.is_leader
    assert "Kafka has not answered" in far.election_trouble
    network.heal()
    eventually(lambda: not far.election_trouble, "it stands by again")
    health = HarvestHealth(far, sampler=None)  # which `ready` does not ask
    eventually(lambda: health.ready() == Verdict(is_healthy=True, reason="it stands by"), "it could be elected")
    network.cut()
    eventually(lambda: "Kafka does not answer" in health.ready().reason, "it could deliver nothing")
    assert not health.ready().is_healthy
    network.heal()
    eventually(lambda: health.ready().is_healthy, "it could be elected again")
    near.stop()
    outbox.fill(1, keys=1)
    eventually(lambda: far.delivered_records == 2, "it leads again")
    read = read_topic(broker.bootstrap_servers, outbox.topic, isolation="read_committed")
    assert [record.outbox_id for record in read] == [1, 2, 3]


class Ear:
    """Note what proofs a member sends and what comes back of them, and let it be mute on one kind of them."""

    def __init__(self, member, monkeypatch):
        self.muted = ""
        self.sent = defaultdict(list)
        """Proofs that went out: by kind, then the candidate and the time."""
        self.came = defaultdict(list)
        """The same of those that came back."""
        self.began = []
        """For each term that began, how old its older proof was then."""
        self._member = member
        membership = member._membership
        for owner, name, replacement in (
            (member, "_send_heartbeat", self._send("heartbeats", member._send_heartbeat)),
            (membership, "commit", self._send("commits", membership.commit)),
            (member, "_receive", self._receive(member._receive)),
            (membership, "accept", self._accept(membership.accept)),
            (member._registry, "take", self._take(member._registry.take)),
        ):
            monkeypatch.setattr(owner, name, replacement)

    def _send(self, kind, send):
        def unless_muted(*arguments):
            if self.muted != kind:
                self.sent[kind].append((self._member._candidacies[0].leader_id, arguments[-1]))
                send(*arguments)

        return unless_muted

    def _receive(self, hear):
        def and_note(message):
            hear(message)
            if message.error() is None:
                beat = json.loads(message.value())
                self.came["heartbeats"].append((UUID(beat["leader_id"]), beat["boot_seconds"]))

        return and_note

    def _accept(self, accept):
        def and_note(sent_at):
            accept(sent_at)
            self.came["commits"].append((self._member._candidacies[0].leader_id, sent_at))

        return and_note

    def _take(self, take):
        def and_note(term):
            accepted_at = self._member._membership.accepted_at
            self.began.append(boot_seconds() - min(self._member._candidacies[0]._heard_at, accepted_at))
            take(term)

        return and_note


@pytest.mark.parametrize(("late", "fresh"), [("heartbeats", "commits"), ("commits", "heartbeats")])
def test_proofs_that_come_late_prove_nothing(pair, network, late, fresh, monkeypatch):
    """Nothing gets through, either way, until the term is over and its proofs are old; then all of it does."""
    far, near = pair.join(session_timeout_seconds=20.0)
    first = far.term(0)
    ear = Ear(far, monkeypatch)
    with Watch(far, near) as watch:
        eventually(lambda: ear.sent[late], "there is something to hold")
        network.hold()
        fenced(first)
        eventually(lambda: ear.sent["heartbeats"][-1][0] != first.leader_id, "it stands again, under a new id")
        candidate = far._candidacies[0].leader_id
        ear.muted = late
        held = ear.sent[late][-1]
        eventually(lambda: boot_seconds() > held[1] + HEARTBEAT_TIMEOUT, "what was sent has become too old")
        healed_at = boot_seconds()
        network.heal()
        eventually(lambda: held[1] in {at for _, at in ear.came[late]}, "all that was held has arrived")
        eventually(lambda: ear.came[fresh] and ear.came[fresh][-1][1] > healed_at, "the other proof is renewed")
        rounds = len(ear.sent[fresh])
        eventually(lambda: len(ear.sent[fresh]) > rounds + 2, "all that was judged")
        assert far.term(0) is None
        assert ear.began == []
        ear.muted = ""
        second = far.term(60)
        assert second is not None
        assert second.leader_id == candidate
    assert dict(watch.led) == {far: [first.leader_id, candidate]}
    assert len(ear.began) == 1
    assert ear.began[0] < HEARTBEAT_TIMEOUT
