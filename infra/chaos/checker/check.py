"""One pass over a history: each event is passed to the checks that use it; at the end each check adds its findings."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from infra.chaos.checker.checkpoints import Checkpoints
from infra.chaos.checker.deliveries import Deliveries
from infra.chaos.checker.effects import Effects
from infra.chaos.checker.failover_losses import FailoverLosses
from infra.chaos.checker.finding import Findings, HistoryVerdict
from infra.chaos.checker.log import ObservedLog
from infra.chaos.checker.losses import Losses
from infra.chaos.checker.parkings import Parkings
from infra.chaos.checker.polls import Polls
from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import Observation, RecordIndex
from infra.chaos.checker.recreated_topics import RecreatedTopics
from infra.chaos.checker.sequences import Sequences
from infra.chaos.checker.terms import ObservedTerms
from infra.chaos.checker.transactions import Transactions
from infra.chaos.checker.writes import Writes
from infra.chaos.history.events import (
    Acknowledge,
    Assign,
    CheckpointWrite,
    Effect,
    Event,
    FailoverLoss,
    MarkEvent,
    Park,
    Poll,
    Produce,
    Purge,
    RecreatedTopic,
    TermEvent,
    TransactionStep,
    Write,
)

_Take = Callable[[Any], None]


def check(events: Iterable[Event], promise: Promise, *, keep: int = 100) -> HistoryVerdict:
    """Return the anomalies of a history: explained anomalies, which the promise allows, and unexplained anomalies.

    `events` must be in the order of time. The history must end with readers that have read the whole log. All findings
    are counted; for each anomaly the first `keep` explained and the first `keep` unexplained findings are returned.
    Does no I/O. Memory grows with the number of records in the history, not with the number of events about them.
    """
    findings, records = Findings(keep), RecordIndex()
    terms = ObservedTerms(promise, findings)
    transactions = Transactions(findings)
    recreated_topics = RecreatedTopics(promise, records, transactions)
    log = ObservedLog(records, findings, recreated_topics, transactions.seen if promise.transactional else _pass_over)
    polls = Polls(log, recreated_topics, findings)
    deliveries = Deliveries(promise, records, transactions, findings)
    checkpoints, failover_losses = Checkpoints(findings), FailoverLosses(records)
    parkings = Parkings(records, findings)
    answer = terms.answer
    takers: Mapping[type[Event], tuple[_Take, ...]] = {
        Write: (Writes(records, findings).write,),
        TermEvent: (terms.term, failover_losses.term),
        MarkEvent: (answer,),
        Produce: (deliveries.produce,),
        Acknowledge: (deliveries.acknowledge, answer),
        TransactionStep: (transactions.transaction, answer),
        Purge: (deliveries.purge, answer),
        CheckpointWrite: (checkpoints.checkpoint, answer),
        Poll: (log.poll, polls.poll, parkings.poll),
        Assign: (recreated_topics.assign, polls.assign),
        Effect: (Effects(records, findings).effect,),
        Park: (parkings.park,),
        FailoverLoss: (failover_losses.failover, checkpoints.failover),
        RecreatedTopic: (recreated_topics.recreate,),
    }
    count = 0
    for event in events:
        count += 1
        for take in takers.get(type(event), ()):
            take(event)
    log.finish()
    polls.finish()
    recreated_topics.finish(partial(log.ordered, committed=promise.transactional))
    Losses(promise, records, findings).finish()
    Sequences(promise, terms, failover_losses, findings).finish(log)
    terms.finish(log)
    if promise.transactional:
        transactions.finish()
    return findings.verdict(count, len(records.by_event))


def _pass_over(_observation: Observation, _event: Poll) -> None:
    """Do nothing, because commits do not matter if readers see uncommitted records."""
