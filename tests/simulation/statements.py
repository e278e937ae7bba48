"""The product's statements on a simulated server. Each is known by its text; one that is not is an error.

A shard in the text becomes values: `of_shard`, its number and how many there are.
"""

import json
from collections import Counter

from psycopg import sql

from harvest_lib.checkpoints.refusals import REMEMBER
from harvest_lib.checkpoints.subscription_rows import _KINDS, _LOCK
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.leadership import last_leaders, rivals
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import row_security
from harvest_lib.outbox.parking.leader_ids import ParkedIds
from harvest_lib.outbox.parking.leader_records import ParkingMoves
from harvest_lib.postgres.database import in_statement
from harvest_lib.source import MarkSource, Selection, SnapshotSource, TransactionIdSource, batch_source, server_identity
from harvest_lib.source.filters import Subscription, shard_conditions
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.source.selection import COLUMNS
from harvest_lib.source.sharding import shard_of
from tests.simulation.plan import SHARDS
from tests.simulation.postgres import Record

OUTBOX, PARKED, SUBSCRIPTIONS, PARKED_IDS = (
    sql.Identifier(each) for each in ("outbox", "outbox_parked", "outbox_subscriptions", "outbox_parked_ids")
)
SUBSCRIPTION = Subscription()
_SYSTEM, _TIMELINE = "7000", "00000001"


class Statements:
    """The statements, over a server's tables. Each takes its values and the transaction that it is a part of, and
    returns rows; `reported` hears of what they do: kind, fields."""

    def __init__(self, database, reported):
        self._database, self._reported = database, reported

    # -- the snapshot source

    def poll(self, values, _transaction):
        now, before, limit = self._database.snapshot(), int(values["before"]), values["limit"]
        opened = {int(each) for each in values["open"]}
        by_transaction = sorted(self._selected(values), key=lambda each: (each.transaction_id, each.row[0]))
        fresh = [each.row for each in by_transaction if each.transaction_id > before][:limit]
        late = [each.row for each in by_transaction if each.transaction_id in opened and now.sees(each.transaction_id)]
        seen = str(now), False, self._database.flushed_up_to
        return [(*seen, *row) for row in [*fresh, *late[:limit]]] or [(*seen, *[None] * 6)]

    def extent(self, values, _transaction):
        now = Snapshot.parse(values["now"])
        found = [
            each.row[0]
            for each in self._database.visible()
            if int(values["from"]) <= each.transaction_id < int(values["to"]) and now.sees(each.transaction_id)
        ]
        return [(min(found, default=None), max(found, default=None))]

    def fresh(self, values, _transaction):
        now, first = Snapshot.parse(values["now"]), int(values["from"])
        return [
            each.row
            for each in self._selected(values)
            if values["after"] < each.row[0] <= values["high"]
            and each.transaction_id >= first
            and now.sees(each.transaction_id)
        ][: values["limit"]]

    def late(self, values, _transaction):
        ended = {int(each) for each in values["ended"]}
        found = [each.row for each in self._selected(values) if each.transaction_id in ended]
        return [row for row in found if row[0] > values["after"]][: values["limit"]]

    def _selected(self, values):
        """Return the committed records of a shard, by id."""
        shard, shards = values.get("of_shard", (0, 1))
        return [each for each in self._database.visible() if shard_of(each.row[2], shards) == shard]

    # -- the transaction_id source

    def following(self, values, _transaction, *, of_open=False):
        place = int(values["transaction"]), values["id"]
        xmin = self._database.snapshot().xmin
        found = [
            (each.transaction_id, each.row)
            for each in self._selected(values)
            if (each.transaction_id, each.row[0]) > place and (of_open or each.transaction_id < xmin)
        ]
        found.sort(key=lambda each: (each[0], each[1][0]))
        rows = [(str(xmin), False, *row, str(transaction_id)) for transaction_id, row in found[: values["limit"]]]
        return rows or [(str(xmin), False, *[None] * 7)]

    # -- both

    def some(self, values, _transaction):
        rows = {each.row[0]: each.row for each in self._database.visible()}
        return [rows[each] for each in values["ids"] if each in rows]

    def foreign(self, _values, _transaction):
        return []

    def now(self, _values, _transaction):
        return [(str(self._database.snapshot()), False)]

    def next_transaction(self, _values, _transaction):
        return [(str(self._database.snapshot().xmax), False)]

    def where(self, _values, _transaction):
        return [(_SYSTEM, _TIMELINE, self._database.lsn)]

    def timeline(self, _values, _transaction):
        return [(_TIMELINE,)]

    def in_recovery(self, _values, _transaction):
        return [(False,)]

    def barrier(self, _values, transaction):
        self._database.take_id(transaction)
        return [(self._database.lsn,)]

    # -- marking

    def mark(self, values, transaction):
        leader = values["leader"]
        head = [each for each in self._database.visible() if each.leader_id != leader][: values["limit"]]
        any_parked = self.any_parked({}, transaction)[0][0]
        for each in head:
            self._lead(transaction, each, leader)
        if head:
            self._reported("mark", leader_id=str(leader), ids=[each.row[0] for each in head])
        rows = [(*each.row, any_parked, len(head)) for each in head]
        self._database.scheduler.dice.shuffle(rows)  # RETURNING is in no order
        return rows

    def mark_placed(self, values, transaction):
        return [(*each, self._database.lsn) for each in self.mark(values, transaction)]

    def purge(self, values, transaction, *, spares=frozenset()):
        visible = {each.row[0]: each for each in self._database.visible()}
        ids = [each for each in _ids(values) if each in visible and visible[each].leader_id not in spares]
        events = [visible[each].row[3] for each in ids]
        for each in ids:
            self._database.change(transaction, self._database.rows, each)
        self._reported("purge", ids=_ids(values), count=len(ids), _events=events)
        return []

    def purge_marked(self, values, transaction):
        return self.purge(values, transaction, spares={None})

    def purge_again(self, values, transaction):
        others = {each.leader_id for each in self._database.visible()} - set(values["leaders"])
        return self.purge(values, transaction, spares=others)

    def reset(self, values, transaction, *, any_leader=False):
        ids = set(_ids(values))
        found = [each for each in self._database.visible() if each.row[0] in ids]
        taken = [each for each in found if any_leader or each.leader_id in values["leaders"]]
        for each in taken:
            self._lead(transaction, each, None)
        self._reported("reset", count=len(taken))
        return []

    def any_parked(self, _values, _transaction):
        return [(bool(self._database.parked),)]

    def parked_keys(self, values, _transaction):
        return [(*each, first) for each, first in self._first_parked().items() if each[1] in values["keys"]]

    def park(self, values, transaction):
        for each, reason in zip(_ids(values), values["reasons"], strict=True):
            self._move(transaction, each, values["leader"], reason, held=False)
        return []

    def hold(self, values, transaction):
        first = self._first_parked()
        rows = self._database.rows
        ids = [each for each in _ids(values) if each in rows and each > first.get(rows[each].row[1:3], each)]
        return [(each,) for each in ids if self._move(transaction, each, values["leader"], "held", held=True)]

    def nothing(self, _values, _transaction):
        return []

    def _first_parked(self):
        found = {}
        for record_id, (record, *_) in sorted(self._database.parked.items()):
            found.setdefault(record.row[1:3], record_id)
        return found

    def _move(self, transaction, record_id, leader, reason, *, held):
        record = self._database.rows.get(record_id)
        if record is None or record.leader_id != leader:
            return False
        self._database.change(transaction, self._database.rows, record_id)
        self._database.change(transaction, self._database.parked, record_id, (record, reason, held))
        return True

    def _lead(self, transaction, record, leader):
        changed = Record(record.row, record.transaction_id, leader)
        self._database.change(transaction, self._database.rows, record.row[0], changed)

    # -- checkpoints

    def lock(self, _values, _transaction):
        return [(shard,) for shard in sorted(self._database.subscriptions)]

    def first(self, values, transaction):
        if 0 not in self._database.subscriptions:
            self._put(transaction, 0, _new_row(values))
        return []

    def lead_after_any_epoch(self, values, transaction):
        return self.lead({**values, "after": None}, transaction)

    def lead(self, values, transaction):
        before = self._row(values) or _new_row(values)
        if values["after"] not in {None, before["epoch"]} and before["leader_id"] not in values["tried"]:
            return []
        row = {**before, "epoch": before["epoch"] + 1, "leader_id": values["leader_id"]}
        self._put(transaction, values["shard"], row)
        self._reported("lead", leader_id=str(values["leader_id"]), shard=values["shard"], epoch=row["epoch"])
        return [(row["generation"], row["epoch"], row["until"], _loaded(row["checkpoint"]))]

    def renew(self, values, transaction):
        row = self._row(values)
        if not _is_led(row, values):
            return []
        row = {**row, "epoch": row["epoch"] + 1}
        self._put(transaction, values["shard"], row)
        return [(row["generation"], row["epoch"], row["until"], _loaded(row["checkpoint"]))]

    def status(self, values, _transaction, *, of=("epoch", "leader_id")):
        row = self._row(values)
        if not _is_led(row, values, of):
            return []
        return [(row["generation"], row["until"], _loaded(row["checkpoint"]), None)]

    def leaders(self, _values, _transaction):
        return []  # all are of one pool

    def announce(self, values, transaction):
        self._put(transaction, values["shard"], {**self._row(values), "leader": values["leader"].obj})
        return []

    def last_leaders_of_any_fence(self, values, transaction):
        return self.last_leaders(values, transaction, of_any_fence=True)

    def last_leaders(self, values, _transaction, *, of_any_fence=False):
        found = []
        for shard, row in sorted(self._database.subscriptions.items()):
            leader = row["leader"] or {}
            is_fenced = leader.get("leader_id") == str(row["leader_id"])
            is_fenced = is_fenced and (of_any_fence or leader.get("fence") == values["fence"])
            found.append((shard, row["shards"], row["epoch"], row["leader_id"] is not None, is_fenced))
        return found

    def marks(self, _values, _transaction):
        return [(False,)]

    def save(self, values, transaction, *, of=("generation", "epoch", "leader_id")):
        row = self._row(values)
        checkpoint = values["checkpoint"].obj
        saved = _loaded(row["checkpoint"]) or {"number": 0}
        held = _is_led(row, values, of)
        is_later = saved.get("witness", 0) < checkpoint["witness"]
        stored = held and saved["number"] <= values["number"] and is_later
        self._reported(
            "checkpoint",
            subscription=values["subscription"],
            shard=values["shard"],
            generation=values["generation"],
            number=values["number"],
            position=checkpoint["position"],
            leader_id=str(values["leader_id"]),
            _stored=stored,
            _asked_at=values.get("asked_at"),
        )
        if stored:
            self._put(transaction, values["shard"], {**row, "checkpoint": json.dumps(checkpoint)})
        return [()] if stored else []

    def vouch(self, values, transaction):
        row = self._row(values)
        if not _is_led(row, values, ("generation", "epoch", "leader_id")) or row["checkpoint"] is None:
            return []
        before, witness = _loaded(row["checkpoint"]), values["witness"].obj
        if before.get("witness", 0) >= witness["witness"]:
            return []
        saved = before | witness
        self._put(transaction, values["shard"], {**row, "checkpoint": json.dumps(saved)})
        return [()]

    def remember(self, values, transaction):
        row = self._row(values)
        saved = _loaded(row["checkpoint"])
        if saved is None or (row["generation"], saved.get("witness", 0)) != (values["generation"], values["witness"]):
            return []
        self._put(transaction, values["shard"], {**row, "checkpoint": json.dumps(saved | values["refused"].obj)})
        return [()]

    def kinds(self, _values, _transaction):
        return sorted({(row["shards"], row["source"]) for row in self._database.subscriptions.values()})

    def rewind(self, transaction, position):
        """Have the subscription go on from elsewhere, as operators do."""
        for shard, row in self._database.subscriptions.items():
            generation, saved = row["generation"] + 1, _loaded(row["checkpoint"]) or {}
            made = {"generation": generation, "number": 1, "position": position, "delivered": 0, "kept_in": "postgres"}
            made |= {name: saved[name] for name in ("intents",) if name in saved}
            self._put(transaction, shard, {**row, "generation": generation, "checkpoint": json.dumps(made)})

    def _row(self, values):
        return self._database.subscriptions.get(values["shard"])

    def _put(self, transaction, shard, row):
        self._database.change(transaction, self._database.subscriptions, shard, row)

    # -- parked records

    def load(self, values, _transaction):
        lowest = {}
        for record_id, (topic, key, *_, shard) in sorted(self._database.parked_ids.items()):
            if shard == values["shard"]:
                lowest.setdefault((topic, key, record_id if values["each"] else 0), record_id)
        return [(*each, record_id) for each, record_id in lowest.items()]

    def matching(self, values, _transaction):
        """No id is given out again here: a listed id is that of its own row."""
        return [(each,) for each in values["ids"] if each in self._database.parked_ids]

    def add(self, values, transaction):
        if self._row(values)["epoch"] != values["epoch"]:
            return [(0,)]
        places = self._database.parked_ids
        columns = (values[each] for each in ("ids", "topics", "keys", "reasons", "helds"))
        for record_id, *entry in zip(*columns, strict=True):
            if not (entry[3] and record_id in places):
                self._database.change(transaction, places, record_id, [*entry, False, values["shard"]])
        return [(1,)]

    def moved(self, values, _transaction):
        places = self._database.parked_ids
        known = zip(values["topics"], values["keys"], values["ids"], strict=True)
        return [(topic, key) for topic, key, each in known if each not in places or places[each][3] or places[each][4]]

    def due(self, values, _transaction):
        places = [each for each in sorted(self._database.parked_ids.items()) if each[1][-1] == values["shard"]]
        due, found = [], Counter()
        moved = list(zip(values["topics"], values["keys"], strict=True))
        for record_id, (*key, _, _, retry, _) in places:
            stays = [each for each, (*other, _, held, again, _) in places if other == key and not held and not again]
            is_first = record_id < min(stays, default=record_id + 1)
            if tuple(key) in moved and (is_first or (retry and not values["keep_order"])):
                due.append((found[tuple(key)], record_id))
                found[tuple(key)] += 1
        last = {tuple(key): record_id for record_id, (*key, _, _, _, _) in places}
        listed = {record_id: tuple(key) for record_id, (*key, _, _, _, _) in places}
        found = [record_id for _, record_id in sorted(due)[: values["limit"]]]
        return [(each, *listed[each], last[listed[each]] == each) for each in found]

    def release(self, values, transaction):
        if self._row(values)["epoch"] != values["epoch"]:
            return [(0,)]
        for each in values["ids"]:
            self._database.change(transaction, self._database.parked_ids, each)
        return [(1,)]

    # -- of builds that are broken on purpose

    def reset_of_anybody(self, values, transaction):
        return self.reset(values, transaction, any_leader=True)

    def save_of_anybody(self, values, transaction):
        return self.save(values, transaction, of=("generation",))

    def status_of_anybody(self, values, transaction):
        return self.status(values, transaction, of=())

    def following_of_open(self, values, transaction):
        return self.following(values, transaction, of_open=True)

    def save_of_any_generation(self, values, transaction):
        return self.save(values, transaction, of=("epoch", "leader_id"))


def _new_row(values):
    """Return the row of a shard that nobody has led yet."""
    nobody = dict.fromkeys(("leader_id", "leader", "until", "checkpoint")) | {"generation": 1, "epoch": 0}
    return nobody | {name: values[name] for name in ("shards", "source")}


def _is_led(row, values, of=("epoch", "leader_id")):
    return row is not None and all(row[each] == values[each] for each in of)


def _ids(values):
    return [int(each) for each in values["ids"].strip("{}").split(",") if each]


def _loaded(text):
    return json.loads(text) if text else None


_MEANINGS = {"read": "following", "fresh_all": "fresh"}
"""Of statements that have another name where they are."""


def _sources(conditions=()):
    """Return the sources that only read, with the names of their statements."""
    selection = Selection(table=OUTBOX, conditions=conditions)
    return {
        SnapshotSource("", selection): "poll extent fresh fresh_all late some foreign",
        TransactionIdSource("", selection): "read",
    }


def _texts(parts):
    for part, names in parts.items():
        for name in names.split():
            yield getattr(part, f"_{name}").as_string(None), _MEANINGS.get(name, name)


def _known():
    """Return the texts of the product's statements, with the names of their meanings."""
    pool = Pool(leadership="postgres")
    checkpoints = CheckpointTable(
        "", SUBSCRIPTIONS, SUBSCRIPTION, rivals=Rivals(pool, SUBSCRIPTIONS, SUBSCRIPTION.name, stale_seconds=0.0)
    )
    parts = {
        **_sources(),
        MarkSource("", OUTBOX): "mark",
        MarkSource("", OUTBOX, PARKED): "mark purge purge_again reset",
        (marked := ParkingMoves(OUTBOX, PARKED)): "any_parked parked_keys park hold",
        checkpoints: "first lead renew save vouch status",
        (
            parked_ids := ParkedIds(checkpoints, PARKED_IDS, SUBSCRIPTIONS, OUTBOX, COLUMNS)
        ): "matching load add moved due release",
    }
    found = dict(_texts(parts))
    placed = MarkSource("", OUTBOX, PARKED, names_places=True)
    found |= {placed._mark.as_string(None): "mark_placed", placed._purge_again.as_string(None): "purge_marked"}
    # No id is given out again here, and there are no columns of others.
    silent = (marked._lock_parked, marked._keep_parked, marked._make_room, marked._columns)
    found |= {each.as_string(None): "nothing" for each in silent}
    of_subscriptions = {
        _KINDS: "kinds",
        _LOCK: "lock",
        REMEMBER: "remember",
        rivals._LEADERS: "leaders",
        rivals._ANNOUNCE: "announce",
        last_leaders._READ: "last_leaders",
    }
    for statement, name in of_subscriptions.items():
        found[sql.SQL(statement).format(table=in_statement(SUBSCRIPTIONS)).as_string(None)] = name
    return found | {
        batch_source._NOW: "now",
        server_identity._WHERE: "where",
        server_identity._IN_RECOVERY: "in_recovery",
        server_identity._NEXT_TRANSACTION: "next_transaction",
        server_identity._BARRIER: "barrier",
        server_identity._TIMELINE: "timeline",
        row_security._LOOK: "",
        parked_ids._replace.as_string(None): "nothing",
        last_leaders._MARKS: "marks",
    }


KNOWN = _known()
OF_SHARD = {}
"""The shard that a statement reads, by its text: its number, and how many there are."""
for _shards in SHARDS:
    for _shard in range(_shards):
        for _text, _name in _texts(_sources(shard_conditions(_shard, _shards))):
            if _text not in KNOWN:
                KNOWN[_text], OF_SHARD[_text] = _name, (_shard, _shards)
