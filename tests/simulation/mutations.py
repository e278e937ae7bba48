"""Builds of the product that are broken on purpose, each by a line: the simulation has to notice every one."""

import inspect
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from psycopg import sql

from harvest_lib.batching.batch import OpenBatch
from harvest_lib.batching.loop import BatchLoop
from harvest_lib.checkpoints import row_statements as checkpoint
from harvest_lib.checkpoints import stores
from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.checkpoints.kafka_store import KafkaStore
from harvest_lib.delivery import AtLeastOnce, Sequenced, TransactionalProducer, at_least_once
from harvest_lib.delivery.failures import Failures
from harvest_lib.harvester.assembly import factory
from harvest_lib.leadership import Term, last_leaders
from harvest_lib.leadership.last_leaders import SubscriptionRows
from harvest_lib.postgres.database import in_statement
from harvest_lib.sequencing.publisher import Publisher
from harvest_lib.sequencing.sequencer import Sequencer
from harvest_lib.source import (
    MarkPages,
    MarkSource,
    Selection,
    SnapshotSource,
    TransactionIdSource,
    mark,
    mark_batches,
    server_identity,
    transaction_id,
)
from tests.simulation import harvesters
from tests.simulation.plan import MODES
from tests.simulation.statements import KNOWN, OUTBOX, SUBSCRIPTIONS

_SHARDS = tuple(each for each in MODES if each.endswith("shards"))
_ALONE = tuple(each for each in MODES if each not in {*_SHARDS, "snapshot-mixed"})
_SNAPSHOT = tuple(each for each in _ALONE if each.startswith("snapshot"))
_BY_ID = tuple(each for each in _ALONE if each.startswith("transaction_id"))
_SEQUENCED = tuple(each for each in _ALONE if each.endswith("sequenced"))
_BATCHES = _SNAPSHOT + _BY_ID
_MARK = ("mark-barrier", "mark-pipelined")
_PAGES = ("mark-transactional",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A function of `owner`, a class or a module, in which `old` is replaced by `new`."""

    owner: object
    name: str
    old: str
    new: str

    def function(self):
        function = getattr(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise LookupError(f"{self.old!r} is not once in {function.__qualname__}: correct the mutation")
        source = source.replace(self.old, self.new).replace("super()", f"super({self.owner.__name__}, self)")
        made = {}
        exec(source, sys.modules[function.__module__].__dict__, made)  # noqa: S102 - our own source, a line of it changed
        return made[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement, a constant of `owner`, without `left_out`; it then means what `meaning` of the simulation does."""

    owner: object
    name: str
    left_out: str
    meaning: str

    @property
    def text(self):
        text = getattr(self.owner, self.name)
        if self.left_out not in text:
            raise LookupError(f"{self.left_out!r} is not in {self.name}: correct the mutation")
        return text.replace(self.left_out, "")

    @property
    def filled(self):
        if self.owner is transaction_id:
            return Selection(table=OUTBOX).fill(self.text).as_string(None)
        table = OUTBOX if self.owner is mark else SUBSCRIPTIONS
        if self.name == "STATUS":  # as a leader asks that other pools may speak to
            return (
                sql.SQL(self.text.replace(" FROM", f"{checkpoint.RIVAL} FROM", 1))
                .format(table=in_statement(table))
                .as_string(None)
            )
        return sql.SQL(self.text).format(table=in_statement(table)).as_string(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A broken build, the modes in which that shows, and a seed that once showed it, which is the first to be tried."""

    name: str
    changes: tuple
    modes: tuple = MODES
    seed: int = 0

    @contextmanager
    def applied(self):
        """Run with the broken build."""
        with ExitStack() as stack:
            for each in self.changes:
                if isinstance(each, Edit):
                    stack.enter_context(patch.object(each.owner, each.name, each.function()))
                else:
                    text, filled = each.text, each.filled
                    stack.enter_context(patch.object(each.owner, each.name, text))
                    stack.enter_context(patch.dict(KNOWN, {filled: each.meaning}))
            yield


def _mutation(name, modes, *changes, seed=0):
    return Mutation(name=name, modes=modes, changes=changes, seed=seed)


def _edit(owner, name, old, new):
    return Edit(owner=owner, name=name, old=old, new=new)


MUTATIONS = (
    _mutation(
        "purged before it is acknowledged",
        _MARK,
        _edit(
            BatchLoop,
            "_commit",
            "outcome = ports.delivery.commit(",
            "ports.source.committed(); ports.store.save(following); outcome = ports.delivery.commit(",
        ),
    ),
    _mutation("no sort after RETURNING", _MARK, _edit(MarkSource, "_claimed", "by_id(rows)", "rows")),
    _mutation(
        "no key barrier over what is marked",
        ("mark-barrier",),
        _edit(OpenBatch, "__init__", "KeyBarrier() if ports.one_per_key else NoBarrier()", "NoBarrier()"),
        seed=3,
    ),
    _mutation(
        "the barrier is lowered before the purge",
        ("mark-barrier",),
        _edit(
            BatchLoop,
            "_commit",
            "ports.source.committed()",
            "ports.source.committed(); batch.barrier.checkpoint_saved()",
        ),
        seed=5,
    ),
    _mutation(
        "what failed is not marked again",
        _MARK,
        _edit(MarkPages, "open", "uuid4()", "self.__dict__.setdefault('_once', uuid4())"),
    ),
    _mutation(
        "an orderly end leaves marks",
        _MARK,
        _edit(MarkPages, "_purge_and_reset", "source.reset(sorted(self._left))", "pass"),
        seed=6,
    ),
    _mutation(
        "what failed of a batch counts as delivered",
        ("mark-barrier",),
        _edit(BatchLoop, "_count_delivered", "self._ports.source.committed(failed)", "self._ports.source.committed()"),
        seed=3,
    ),
    _mutation(
        "what failed of a batch is passed",
        ("snapshot-barrier",),
        _edit(OpenBatch, "defer_failed", "[*failed, *self._unsent]", "self._unsent"),
        seed=28,
    ),
    _mutation(
        "what failed is forgotten when the term ends",
        ("mark-barrier", "snapshot-barrier"),
        _edit(OpenBatch, "abandoned", "self.in_doubt += self.in_flight", "pass"),
        seed=2,
    ),
    _mutation(
        "the lease is not checked",
        MODES,
        _edit(Term, "is_live", " and self._clock() < self._lease_until", ""),
        seed=10,
    ),
    _mutation(
        "nobody waits for a leader that nothing fences",
        ("snapshot-barrier",),
        _edit(SubscriptionRows, "read", "bool(self.fence) and are_ours", "are_ours"),
        seed=94,
    ),
    _mutation(
        "any fence of the leader before counts as ours",
        ("snapshot-mixed",),
        Statement(
            owner=last_leaders,
            name="_READ",
            left_out=" AND leader ->> 'fence' = %(fence)s",
            meaning="last_leaders_of_any_fence",
        ),
        seed=144,
    ),
    _mutation(
        "a term begins whatever became of the epoch since it was granted",
        ("snapshot-transactional", "snapshot-mixed"),
        Statement(
            owner=checkpoint,
            name="LEAD",
            left_out="\nWHERE s.epoch = coalesce(%(after)s::bigint, s.epoch) OR s.leader_id = ANY (%(tried)s::uuid[])",
            meaning="lead_after_any_epoch",
        ),
        seed=227,
    ),
    _mutation(
        "no key barrier in batches",
        ("snapshot-barrier",),
        _edit(OpenBatch, "__init__", "KeyBarrier() if ports.one_per_key else NoBarrier()", "NoBarrier()"),
        seed=1,
    ),
    _mutation(
        "what was deferred is forgotten",
        ("snapshot-barrier",),
        _edit(BatchLoop, "_following", "(deferred_ids := self._batch.deferred_ids)", "(deferred_ids := [])"),
        seed=3,
    ),
    _mutation(
        "what is on the wire is not waited for",
        ("snapshot-barrier",),
        _edit(BatchLoop, "_restart", "if abandoned.may_arrive:", "if False:"),
        seed=2,
    ),
    _mutation(
        "a checkpoint is saved before the batch is committed",
        _BATCHES,
        _edit(
            BatchLoop,
            "_commit",
            "outcome = ports.delivery.commit(",
            "ports.store.save(following); outcome = ports.delivery.commit(",
        ),
        seed=2,
    ),
    _mutation(
        "the position goes on though the batch failed",
        _BATCHES,
        _edit(
            BatchLoop,
            "_commit",
            "outcome = ports.delivery.commit(",
            "self._checkpoints.last = following; outcome = ports.delivery.commit(",
        ),
        seed=3,
    ),
    _mutation(
        "what is held is not written down",
        _BATCHES,
        _edit(BatchLoop, "_commit", "if not ports.parking.write():", "if False:"),
        seed=3,
    ),
    _mutation(
        "a batch does not wait for its reports",
        ("snapshot-pipelined", "snapshot-barrier", *_MARK),
        _edit(AtLeastOnce, "commit", "return self._producer.flush(may_send)", "return BatchCommitted()"),
        seed=2,
    ),
    _mutation(
        "a batch does not hear of failures",
        ("snapshot-pipelined", "snapshot-barrier", *_MARK),
        _edit(Failures, "add", "self.first = error", "pass"),
        seed=3,
    ),
    _mutation(
        "gaps are allowed",
        ("snapshot-pipelined",),
        _edit(
            at_least_once, "expiry_settings", '"enable.gapless.guarantee": True', '"enable.gapless.guarantee": False'
        ),
        seed=3,
    ),
    _mutation(
        "epochs are ignored",
        _BATCHES,
        Statement(
            owner=checkpoint,
            name="SAVE",
            left_out=" AND epoch = %(epoch)s AND leader_id = %(leader_id)s",
            meaning="save_of_anybody",
        ),
        Statement(
            owner=checkpoint,
            name="STATUS",
            left_out=" AND epoch = %(epoch)s AND leader_id = %(leader_id)s",
            meaning="status_of_anybody",
        ),
        seed=11,
    ),
    _mutation(
        "generations are ignored",
        _BATCHES,
        Statement(
            owner=checkpoint,
            name="SAVE",
            left_out="generation = %(generation)s AND ",
            meaning="save_of_any_generation",
        ),
    ),
    _mutation(
        "each leader has transactional ids of its own",
        ("snapshot-transactional",),
        _edit(
            harvesters,
            "make_delivery",
            "ids = (first_id,",
            "first_id += __import__('uuid').uuid4().hex; ids = (first_id,",
        ),
        seed=35,
    ),
    _mutation(
        "acknowledgements leave before they are kept",
        _SEQUENCED,
        _edit(
            Sequenced,
            "commit",
            "if not self._keep(checkpoint, intents):",
            "self._acknowledge(intents)\n    if not self._keep(checkpoint, intents):",
        ),
        seed=11,
    ),
    _mutation(
        "acknowledgements are not kept",
        _SEQUENCED,
        _edit(stores.IntentStore, "save_pending", "[intent.to_json() for intent in intents]", "()"),
        seed=6,
    ),
    _mutation(
        "who comes after does not write again what was kept",
        _SEQUENCED,
        _edit(
            stores.PostgresCheckpointStore,
            "_acknowledge_again",
            "self._acknowledge_pending(self._mirror.intents)",
            "pass",
        ),
        seed=6,
    ),
    _mutation(
        "an acknowledgement that is written again has another id",
        _SEQUENCED,
        _edit(Publisher, "acknowledge", "intent.id", "self._next_id(Flag.ACK_TXN)"),
        seed=6,
    ),
    _mutation(
        "acknowledgements are forgotten before they are in Kafka",
        _SEQUENCED,
        _edit(Sequenced, "settle", "outcome = self._producer.flush(may_send)", "outcome = BatchCommitted()"),
        seed=120,
    ),
    _mutation(
        "acknowledgements go behind the records of the next batch",
        _SEQUENCED,
        _edit(
            Sequenced,
            "commit",
            "return self._acknowledge(intents)",
            "late, self._late = getattr(self, '_late', ()), intents; return self._acknowledge(late)",
        ),
    ),
    _mutation(
        "what is sent again has the producer id of what was given up",
        _SEQUENCED,
        _edit(Sequenced, "begin", "self._ids = MessageIds()", "pass"),
        seed=5,
    ),
    _mutation(
        "a successor does not fence who is about to acknowledge",
        _SEQUENCED,
        Statement(
            owner=checkpoint,
            name="SAVE",
            left_out=" AND epoch = %(epoch)s AND leader_id = %(leader_id)s",
            meaning="save_of_anybody",
        ),
        seed=50,
    ),
    _mutation(
        "what was saved without an answer may count later",
        _SEQUENCED,
        _edit(stores.IntentStore, "load", "checkpoint = self._checkpoints.renew()", "checkpoint = self._mirror"),
        seed=14,
    ),
    _mutation(
        "readers do not wait for acknowledgements",
        _SEQUENCED,
        _edit(Sequencer, "_take", "self._hold(message, producer, known)", "yield (message,)"),
        seed=1,
    ),
    _mutation(
        "every shard has all keys",
        _SHARDS,
        _edit(harvesters, "make_selection", "shard_conditions(shard, config.shards, columns)", "[]"),
    ),
    _mutation(
        "a shard goes on from the checkpoint of another",
        _SHARDS,
        _edit(harvesters, "subscription_of", "shard=shard", "shard=0"),
    ),
    _mutation(
        "shards have one partition for their checkpoints",
        ("snapshot-transactional-shards",),
        _edit(factory, "_checkpoint_place", "partition=shard", "partition=0"),
    ),
    _mutation(
        "shards have one transactional id",
        ("snapshot-transactional-shards",),
        _edit(harvesters, "make_delivery", ".{shard}", ".0"),
    ),
    _mutation(
        "a term begins from the epoch of another shard",
        _SHARDS,
        _edit(SubscriptionRows, "read", "{shard: epoch for", "{shard: rows[0][2] for"),
        seed=11,
    ),
    _mutation(
        "the producer of a doubtful transaction goes on",
        ("snapshot-transactional",),
        _edit(
            TransactionalProducer,
            "begin",
            "self._renew_producer(leader_id)\n    while",
            "if self._has_begun and (self._failures.first is None or not self._failures.first.fatal()):\n"
            "        self._open = self._open or self._failures._stopped\n"
            "        self._failures.clear()\n"
            "        return BatchCommitted()\n"
            "    self._renew_producer(leader_id)\n    while",
        ),
        _edit(TransactionalProducer, "discard", "self._producer.discard()", "pass"),
        seed=16,
    ),
    _mutation(
        "the mirror counts, not Kafka's checkpoint",
        ("snapshot-transactional",),
        _edit(
            CheckpointChoice,
            "newest",
            "mirror, theirs = self.mirror, OutboxCheckpoint.of_json(record) if record is not None else None",
            "return self.mirror",
        ),
        seed=1,
    ),
    _mutation(
        "no durability barrier",
        _BATCHES,
        _edit(server_identity, "barrier", "(row,) = connection.execute(_BARRIER, prepare=True)", 'row = ("0/1",)'),
        # It flushes as well, before a commit of Kafka's.
        _edit(KafkaStore, "_vouch", "boot_seconds() < self._vouch_at", "True"),
        seed=12,
    ),
    _mutation(
        "what was not flushed counts as flushed",
        _SNAPSHOT,
        _edit(SnapshotSource, "_next_window", "first[_FLUSHED_UP_TO]", '"0/1"'),
        # It flushes as well, before a commit of Kafka's.
        _edit(KafkaStore, "_vouch", "boot_seconds() < self._vouch_at", "True"),
        seed=128,
    ),
    _mutation(
        "the lower bound of a snapshot is off by one",
        _SNAPSHOT,
        _edit(SnapshotSource, "_next_window", "str(self._prev.xmax - 1)", "str(self._prev.xmax)"),
        seed=0,
    ),
    _mutation(
        "late transactions are forgotten",
        _SNAPSHOT,
        _edit(SnapshotSource, "_next_window", "[str(each) for each in self._prev.in_progress]", "[]"),
        seed=7,
    ),
    _mutation(
        "late transactions are forgotten in pages",
        _SNAPSHOT,
        _edit(SnapshotSource, "_begin_window", "[str(each) for each in self._prev.late(cur)]", "[]"),
    ),
    _mutation(
        "what is in a transaction that is open is passed",
        _BY_ID,
        Statement(
            owner=transaction_id, name="_READ", left_out=" AND {transaction_id} < now.xmin", meaning="following_of_open"
        ),
        seed=3,
    ),
    _mutation(
        "the rest of a transaction is passed with its first page",
        _BY_ID,
        _edit(TransactionIdSource, "read", "int(last[-1]), last[_FIRST_ID]", "int(last[-1]), 2**63"),
    ),
    _mutation(
        "pages are purged before they are committed",
        _PAGES,
        _edit(MarkPages, "_request", "list(self._delivered)", "[*self._delivered, *self._held]"),
    ),
    _mutation(
        "what a position has passed is not purged by who goes on from it",
        _PAGES,
        _edit(MarkPages, "open", "*(_delivered(position) if position is not None else [])", ""),
        seed=15,
    ),
    _mutation(
        "what is marked a second time is sent a second time",
        (*_PAGES, "mark-sequenced"),
        _edit(MarkPages, "_claim", "{*self._held, *gone}", "set()"),
        seed=56,
    ),
    _mutation(
        "what was asked ahead is taken in by the next term",
        _PAGES,
        _edit(MarkPages, "_quiet", "pending, self._pending = self._pending, None", "pending = None"),
        seed=3,
    ),
    _mutation(
        "ids are not spelled as they are read",
        _PAGES,
        _edit(mark_batches, "decode_ids", "accumulate(map(int, text.split()))", "map(int, text.split())"),
        seed=15,
    ),
)
