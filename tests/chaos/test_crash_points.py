"""A harvester is killed at each step between produce, commit, checkpoint and purge, and another one goes on.

Readers of committed records see each record exactly once under transactional and sequenced, at least once otherwise. No
key steps back but under pipelined, where a run of its records may come again, without a gap.
"""

import json
import random
import signal
from dataclasses import dataclass

import pytest
from support.native_outbox import NativeOutbox
from support.outbox import Outbox, check_runs, harvest_config, read_topic, steps
from support.sequenced import read_acknowledged
from support.striking import Struck

from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate

long = pytest.mark.long

ONCE = {"transactional", "sequenced"}

RECORDS = 2_500
MORE = 300

STEPS = {
    # The n-th time is one at which a batch was committed before, and others were to come.
    "transactional": {
        "lead": 1,
        "begin": 1,
        "begun": 1,
        "produce": 1_300,
        "commit": 2,
        "committing": 2,
        "committed": 2,
        "save": 2,
        "saved": 2,
    },
    "batches": {"lead": 1, "produce": 1_300, "landed": 2, "save": 2, "saved": 2},
    "marks": {"fetched": 3, "produce": 1_300, "landed": 2, "purge": 2, "purged": 2},
    "sequenced": {
        "lead": 1,
        "produce": 1_300,
        "landed": 2,
        "keep": 2,
        "keeping": 2,
        "kept": 2,
        "acknowledge": 6,
        "saved": 2,
    },
    "marks_sequenced": {
        "fetched": 3,
        "produce": 1_300,
        "keep": 2,
        "kept": 2,
        "acknowledge": 6,
        "purge": 2,
        "purged": 2,
    },
    "marks_in_batches": {
        "fetched": 3,
        "produce": 1_300,
        "commit": 2,
        "committed": 2,
        "save": 2,
        "purge": 2,
        "purged": 2,
    },
}

WAYS = {
    # name: source, delivery, steps
    "snapshot_transactional": ("snapshot", "transactional", "transactional"),
    "snapshot_pipelined": ("snapshot", "pipelined", "batches"),
    "snapshot_barrier": ("snapshot", "barrier", "batches"),
    "mark_transactional": ("mark", "transactional", "marks_in_batches"),
    "snapshot_sequenced": ("snapshot", "sequenced", "sequenced"),
    "mark_sequenced": ("mark", "sequenced", "marks_sequenced"),
    "mark_pipelined": ("mark", "pipelined", "marks"),
    "mark_barrier": ("mark", "barrier", "marks"),
}

ALIKE = {"snapshot_pipelined", "mark_pipelined", "mark_sequenced"}
"""Their steps are those of others, in another order."""

CASES = [
    pytest.param(way, step, nth, id=f"{way}-{step}", marks=[long] if way in ALIKE else [])
    for way, (_, _, steps_of) in WAYS.items()
    for step, nth in STEPS[steps_of].items()
]


@dataclass
class Crashes:
    """Harvesters of one outbox, each of which is killed on its way."""

    outbox: Outbox
    servers: str
    group: str
    folder: object
    source: str
    delivery: str
    crashed: int = 0

    @property
    def settings(self):
        is_fenced = self.source != "mark" and self.delivery in ONCE  # the default there; elsewhere each would wait
        elected = "postgres" if is_fenced else "solo"
        return {"source": self.source, "delivery": self.delivery, "leadership": elected}

    def crash(self, step, nth, *, delay_ms=0.0):
        """Run a harvester that is killed at a step; True unless it had nothing left to do before it came there."""
        file = self.folder / "reaper.json"
        configuration = {
            "baseKafkaConfig": {"bootstrap.servers": self.servers},
            "leaderGroupID": self.group,
            "dataSource": self.outbox.dsn,
            "limits": {"ioErrorBackoff": "100ms"},
            **self.settings,
        }
        file.write_text(json.dumps({"harvest": configuration}))
        arguments = ["-f", file, "--drain", "--step", step, "--nth", nth, "--delay-ms", delay_ms]
        log = self.folder / f"harvester-{self.crashed}.log"
        self.crashed += 1
        code = Struck(arguments, log).wait(60)
        assert code in {0, -signal.SIGKILL}, log.read_text()
        return code != 0

    def finish(self):
        """Have a harvester deliver what is left, and return all that is in the topic."""
        config = harvest_config(self.outbox.dsn, self.servers, self.group, **self.settings)
        Harvest(config).drain(60)
        return self.read(self.outbox.topic)

    def read(self, topic):
        """Return what a reader of committed records finds in a topic."""
        if self.delivery == "sequenced":
            return read_acknowledged(self.servers, topic)
        return read_topic(self.servers, topic, isolation="read_committed")


@pytest.fixture
def crashes(dsn, make_topic, bootstrap_servers, group_id, tmp_path, way):
    source, delivery, _ = WAYS[way]
    in_batches = source != "mark" or delivery in ONCE
    outbox = (NativeOutbox if in_batches else Outbox)(dsn, make_topic(4))
    yield Crashes(outbox, bootstrap_servers, group_id, tmp_path, source, delivery)
    outbox.close()


def check(delivery, delivered, records):
    """The ids from 1 to `records` are there, as often and in such an order as the delivery promises."""
    assert {record.outbox_id for record in delivered} == set(range(1, records + 1))
    if delivery in ONCE:
        assert len(delivered) == records, "a record twice"
    if delivery == "pipelined":
        check_runs(delivered)
    else:
        assert steps(delivered) == []


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(("way", "step", "nth"), CASES)
def test_killed_at_a_step(crashes, step, nth):
    crashes.outbox.fill(RECORDS, keys=500)
    assert crashes.crash(step, nth, delay_ms=1.0), f"it never came to {step}"
    crashes.outbox.fill(MORE, keys=500)
    check(crashes.delivery, crashes.finish(), RECORDS + MORE)


@pytest.mark.parametrize("way", ["snapshot_transactional", "snapshot_sequenced"])
def test_killed_after_its_first_look_at_an_empty_outbox(crashes):
    """The checkpoint that a subscription begins with is nowhere but in Postgres."""
    assert crashes.crash("saved", 1)
    crashes.outbox.fill(MORE)
    check(crashes.delivery, crashes.finish(), MORE)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", WAYS)
def test_killed_again_and_again_at_any_step(crashes, way, seed):
    draw = random.Random(f"{way} {seed}")
    steps_of = STEPS[WAYS[way][2]]
    records = 0
    for _ in range(12):
        more = draw.randint(1, RECORDS)
        few = 40 if crashes.delivery == "barrier" else 1  # under the barrier one key goes record by record
        crashes.outbox.fill(more, keys=draw.choice([few, 40, 500]))
        records += more
        step = draw.choice(list(steps_of))
        nth = draw.randint(1, more) if step == "produce" else draw.randint(1, steps_of[step] + 1)
        crashes.crash(step, nth, delay_ms=draw.uniform(0.0, 8.0))
    check(crashes.delivery, crashes.finish(), records)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("way", "step"),
    [
        *(("snapshot_transactional", step) for step in ("park", "parked", "commit", "committed", "released")),
        *(("snapshot_sequenced", step) for step in ("keep", "kept", "released")),
    ],
)
def test_killed_while_records_are_parked_or_sent_again(crashes, step, make_topic, unique):
    """A retried record is in the checkpoint until it is forgotten, so nobody sends it twice. Later records of a key in
    the missing topic are held, before a retry and beside it; the same keys go on in the other topic."""
    later, outbox = unique("later"), crashes.outbox

    def fill(for_later):
        with outbox.connection.transaction():
            outbox.fill(50)
            outbox.connection.execute("UPDATE outbox SET kafka_topic = %s WHERE id = ANY(%s)", (later, for_later))

    fill([7, 8, 17, 18, 27, 28])
    if step.startswith("park"):
        assert crashes.crash(step, 1)
    before = {record.outbox_id for record in crashes.finish()}
    assert before == set(range(1, 51)) - {7, 8, 17, 18, 27, 28}
    parked = "SELECT id, held FROM outbox_parked_ids"
    held = dict.fromkeys([17, 18, 27, 28], True)
    assert dict(outbox.connection.execute(parked).fetchall()) == {7: False, 8: False, **held}
    make_topic(4, name=later)
    outbox.connection.execute("UPDATE outbox_parked_ids SET retry = true WHERE NOT held")
    fill([57, 58, 67, 68])
    if not step.startswith("park"):
        assert crashes.crash(step, 1 if step == "released" else 2)
    delivered = crashes.finish()
    retried = crashes.read(later)
    assert sorted(record.outbox_id for record in [*delivered, *retried]) == list(range(1, 101))
    assert steps(delivered) == []
    assert steps(retried) == []
    assert {record.outbox_id for record in retried} == {7, 8, 17, 18, 27, 28, 57, 58, 67, 68}
    assert outbox.connection.execute("SELECT count(*) FROM outbox_parked_ids").fetchone() == (0,)
