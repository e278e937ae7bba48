"""One pass over a history, each event to those parts that it concerns; then each part says what it has found."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harvest_lib.audit.checker.checkpoints import Checkpoints
from harvest_lib.audit.checker.deliveries import Deliveries
from harvest_lib.audit.checker.effects import Effects
from harvest_lib.audit.checker.failover_losses import Regressions
from harvest_lib.audit.checker.finding import Findings, Verdict
from harvest_lib.audit.checker.log import Log
from harvest_lib.audit.checker.losses import Losses
from harvest_lib.audit.checker.parkings import Parkings
from harvest_lib.audit.checker.polls import Polls
from harvest_lib.audit.checker.promise import Promise
from harvest_lib.audit.checker.records import Records, Sighting
from harvest_lib.audit.checker.recreated_topics import Remakes
from harvest_lib.audit.checker.sequences import Sequences
from harvest_lib.audit.checker.terms import Terms
from harvest_lib.audit.checker.transactions import Transactions
from harvest_lib.audit.checker.writes import Writes
from harvest_lib.audit.history import (
    Acknowledge,
    Assign,
    Checkpoint,
    Effect,
    Event,
    Mark,
    Park,
    Poll,
    Produce,
    Purge,
    Regress,
    Remake,
    Term,
    Transaction,
    Write,
)

_Take = Callable[[Any], None]


def check(events: Iterable[Event], promise: Promise, *, keep: int = 100) -> Verdict:
    """Return what in a history the promise does not allow, and what it does.

    `events` come in the order of time. The history must end with readers that have read the whole log. Of each anomaly
    the first `keep` findings are returned, explained and unexplained; all are counted. Does no I/O; memory grows with
    the records of the history, not with what was done to them.
    """
    findings, records = Findings(keep), Records()
    terms = Terms(promise, findings)
    transactions = Transactions(findings)
    remakes = Remakes(promise, records, transactions)
    log = Log(records, findings, remakes, transactions.seen if promise.transactional else _pass_over)
    polls = Polls(log, remakes, findings)
    deliveries = Deliveries(promise, records, transactions, findings)
    checkpoints, regressions = Checkpoints(findings), Regressions(records)
    parkings = Parkings(records, findings)
    told = terms.told
    takers: Mapping[type[Event], tuple[_Take, ...]] = {
        Write: (Writes(records, findings).write,),
        Term: (terms.term,),
        Mark: (told,),
        Produce: (deliveries.produce,),
        Acknowledge: (deliveries.acknowledge, told),
        Transaction: (transactions.transaction, told),
        Purge: (deliveries.purge, told),
        Checkpoint: (checkpoints.checkpoint, told),
        Poll: (log.poll, polls.poll, parkings.poll),
        Assign: (remakes.assign, polls.assign),
        Effect: (Effects(records, findings).effect,),
        Park: (parkings.park,),
        Regress: (regressions.regress, checkpoints.regress),
        Remake: (remakes.remake,),
    }
    count = 0
    for event in events:
        count += 1
        for take in takers.get(type(event), ()):
            take(event)
    log.finish()
    polls.finish()
    remakes.finish(log)
    Losses(promise, records, findings).finish()
    Sequences(promise, terms, regressions, findings).finish(log)
    terms.finish(log)
    if promise.transactional:
        transactions.finish()
    return findings.verdict(count, len(records.by_event))


def _pass_over(_sighting: Sighting, _event: Poll) -> None:
    """Commits do not matter where readers see what is not committed."""
