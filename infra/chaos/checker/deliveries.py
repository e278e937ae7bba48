"""The delivery of records, from the client to the purge of their rows.

purge-before-ack: a row was deleted before Kafka had acknowledged its record. If the delivery is transactional, the
anomaly is also that a row was deleted before a commit was requested for any transaction that could contain its record.
"""

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import RecordIndex
from infra.chaos.checker.transactions import Transactions
from infra.chaos.history.events import Acknowledge, Produce, Purge


class Deliveries:
    """Follows records from the client to the purge of their rows."""

    def __init__(self, promise: Promise, records: RecordIndex, transactions: Transactions, findings: Findings) -> None:
        self._promise = promise
        self._records = records
        self._transactions = transactions
        self._findings = findings
        self._strangers: dict[int, Acknowledge] = {}
        """Acknowledgements of records whose send is not recorded, by outbox id."""

    def produce(self, event: Produce) -> None:
        """Process an event: a record was handed over to the client."""
        record = self._records.get(event.event)
        record.produced += (event,)
        self._records.by_id[event.id] = record
        self._transactions.produce(event, record)

    def acknowledge(self, event: Acknowledge) -> None:
        """Process an event: a record is in Kafka. Other types than `ok` are ignored."""
        if event.type != "ok":
            return
        record = self._records.by_id.get(event.id)
        if record is None:
            self._strangers[event.id] = event
        else:
            record.acknowledged += (event,)

    def purge(self, event: Purge) -> None:
        """Process an event: rows were deleted (`ok`), or may have been deleted (`info`)."""
        if event.type not in {"ok", "info"}:
            return
        for row in event.ids:
            record = self._records.by_id.get(row)
            if record is not None:
                record.purged = event
                acknowledged = record.acknowledged
            else:
                acknowledged = (self._strangers[row],) if row in self._strangers else ()
            if not acknowledged:
                self._early(event, row, "its record was not acknowledged")
            elif self._promise.transactional and not any(map(self._transactions.may_be_committed, acknowledged)):
                self._early(event, row, "no transaction was committed that could hold its record")

    def _early(self, event: Purge, row: int, why: str) -> None:
        record = self._records.by_id.get(row)
        known = (*record.writes(), *record.produced, *record.acknowledged) if record is not None else ()
        purge = Purge(
            type=event.type,
            process=event.process,
            time=event.time,
            wall=event.wall,
            number=event.number,
            leader_id=event.leader_id,
            ids=(row,),
            count=min(event.count, 1),
        )
        self._findings.add("purge-before-ack", f"id {row} was purged: {why}", (*known, purge))
