"""Facts about the topics that records name: why a topic takes no records, its limit of a batch, its cleanup policy.

Brokers are queried before a record is sent: a broker refuses a batch or transaction as a whole, so a bad record would
fail all records of its batch. Topics that take records are remembered. Missing topics are remembered for a few seconds.
A topic's batch limit below librdkafka's default matters for pages that name the topic, and for each new producer. Such
a limit is valid for a minute. Then it is forgotten, and queried again when a record names the topic.

A topic in *trouble* takes no records now (`topic_troubles`). The trouble may pass, so harvest waits. After 30 s, if
other topics take records, records of the topic are refused, so that they do not wait without end. The topic is tried
again after a minute, then after two, up to ten. If harvest never had the right to write to a topic, it does not wait
for that topic while another topic takes records.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import boot_seconds
from harvest_lib.delivery.errors import compresses, largest_message
from harvest_lib.delivery.topic_facts import ANSWER_SECONDS, DEFAULT_BATCH_BYTES, Facts, ask
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.kafka_client import client_settings
from harvest_lib.native import NativeRows
from harvest_lib.record import HEADERS, INTERNAL_TOPICS, TOPIC, Row, Unreadable, is_legal_topic, misleading_header
from harvest_lib.record.rows import RowsSummary

_log = logging.getLogger(__name__)

_RECHECK_SECONDS = 5.0
"""Validity of these facts: a topic is missing, a topic permanently takes no records, a limit by which a record
is refused. After a query that no broker answers, the brokers are not queried for the same time."""
_SMALL_SECONDS = 60.0
"""Validity of a limit below librdkafka's default. When such a limit has been gone for the same time, producers
that were made for this limit are made again."""
_ASK_SECONDS = 1.0
"""Least interval between two queries about a topic in trouble."""
_MOST_ASKED = 100

_BATCH_OVERHEAD_BYTES = 1_000
"""Upper bound of the bytes that a batch of one record needs beside the record."""
_LEAST_OVERHEAD_BYTES = 68
"""Least bytes that a batch of one record needs beside the record."""

_LONGEST_CHARACTER_BYTES = 4

_MISSING = "the topic does not exist"
_COMPACTED = "the topic is compacted"
_INTERNAL = "the topic is Kafka's own"
_OWN = "the topic is the harvester's own, for election or checkpoints"

_LOOKED_AT = frozenset({*HEADERS, None})


def _no_topic(_topic: str) -> bool:
    return False


class Topics:
    """Facts about topics. The brokers are queried when a record first names a topic. `settings` are a producer's.

    With `keep_all`, records for compacted topics are refused. Records for harvest's `own` topics are always refused.
    """

    def __init__(
        self, settings: Mapping[str, object], *, keep_all: bool = False, own: Callable[[str], bool] = _no_topic
    ) -> None:
        self._keep_all = keep_all
        self._own = own
        self._compresses, self._most_bytes = compresses(settings), largest_message(settings)
        self._settings = {**settings, "socket.timeout.ms": int(ANSWER_SECONDS * 1000)}
        self._admin: AdminClient | None = None
        self._limits: dict[str, int] = {}  # topic -> limit in bytes, of the topics that take records
        self._asked_at: dict[str, float] = {}
        self._unfit: dict[str, tuple[str, float]] = {}  # topic -> why it takes nothing, and until when that is valid
        self._closed: Mapping[str, str] = {}
        self._seen_well: set[str] = set()
        self.troubles = Troubles(self._seen_well)
        self._ask_at = 0.0
        self._is_silent = False  # no broker answered the last query
        self._small: dict[str, tuple[int, float]] = {}  # topic -> limit below librdkafka's default; valid until
        self._least_made_for, self._dropped_at = DEFAULT_BATCH_BYTES, 0.0

    @property
    def smallest_limit(self) -> int:
        """Return the lowest `max.message.bytes` of the topics that are known now, at most librdkafka's default."""
        return min((limit for limit, _ in self._small.values()), default=DEFAULT_BATCH_BYTES)

    def limit_of_producer(self) -> int:
        """Return `smallest_limit` for a producer that is about to be made, and remember it."""
        self._least_made_for = self.smallest_limit
        return self._least_made_for

    @property
    def is_producer_outdated(self) -> bool:
        """Return True if the limit for which producers were made has been below every topic's limit for a minute."""
        if self._least_made_for == DEFAULT_BATCH_BYTES:
            return False
        is_settled = boot_seconds() >= self._dropped_at + _SMALL_SECONDS
        return is_settled and self._least_made_for < self.smallest_limit

    def refused(self, rows: Sequence[Row], largest: int | None = None) -> dict[int, str]:
        """Return the refused records: a dictionary from record id to reason. Blocks while brokers are queried about a
        new topic. `largest` is the length of the longest value: if it is not near a limit, records are not measured.
        If `largest` is None, each record is measured."""
        if self._small:
            self._drop_old_limits()
        if isinstance(rows, NativeRows):
            if self._takes_all(rows.summary):
                return {}
            rows, largest = list(rows), None
        known, is_plain = self._limits, _LOOKED_AT.isdisjoint
        array: type = list
        try:
            doubtful = [
                row
                for row in rows
                if row[1] not in known
                or len(row[4]) != len(row[5])
                or not is_plain(row[4])
                or (row[5] and row[5][0].__class__ is array)  # half the time of isinstance, for every record
            ]
        except TypeError:  # the names of a header are an array of arrays
            doubtful = list(rows)
        if largest is None or self._may_exceed(largest * _LONGEST_CHARACTER_BYTES, lambda: _topics_of(rows)):
            doubtful += [row for row in rows if self._is_too_large(row)]
        if not doubtful:
            return {}
        named = {row[1] for row in doubtful}
        self._learn({topic for topic in named if topic not in known and is_legal_topic(topic)})
        troubles = {topic: reason for topic in named & self.troubles.topics if (reason := self._judge(topic))}
        reasons = ((row[0], self._reason(row) or troubles.get(row[1], "")) for row in doubtful)
        return {record_id: reason for record_id, reason in reasons if reason}

    def _takes_all(self, rows: RowsSummary) -> bool:
        """Return True if no row needs an individual check."""
        are_known = rows.is_plain and self._limits.keys() >= set(rows.topics)
        return are_known and not self._may_exceed(rows.largest, lambda: rows.topics)

    def _may_exceed(self, size: int, topics: Callable[[], Iterable[str]]) -> bool:
        """Return True if a record with a value of `size` bytes may exceed the limit of one of the topics. `topics` is
        called only if the size exceeds the lowest known limit."""
        size += _BATCH_OVERHEAD_BYTES
        return size > self.smallest_limit and size > min(map(self.limit, topics()), default=0)

    def _drop_old_limits(self) -> None:
        now = boot_seconds()
        for topic in [topic for topic, (_, until) in self._small.items() if now >= until]:
            del self._small[topic]
            self._limits.pop(topic, None)
            self._dropped_at = now

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:
        """Return the ids of records above a topic's limit. If compression does not make such a record smaller, a broker
        refuses its whole batch. `largest` is the length of the longest value: if it is not near a limit, no record is
        measured."""
        if not self._may_exceed(largest * _LONGEST_CHARACTER_BYTES, lambda: _topics_of(rows)):
            return set()
        return {row[0] for row in rows if _size(row) + _BATCH_OVERHEAD_BYTES > self.limit(row[1])}

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Return the compacted topics among `topics`, as far as harvest may read their policy. Kafka's and harvest's
        own topics are left out."""
        named = list(topics)
        self._learn({topic for topic in named if topic not in self._limits and is_legal_topic(topic)})
        theirs = [topic for topic in named if topic not in INTERNAL_TOPICS and not self._own(topic)]
        return sorted(topic for topic in theirs if self._unfit.get(topic, ("", 0))[0].startswith(_COMPACTED))

    @property
    def names(self) -> list[str]:
        """Return the existing topics that records have named. Any thread may call it."""
        return list(self._limits.copy())

    def limit(self, topic: str) -> int:
        """Return the largest size in bytes of a batch for the topic."""
        return self._limits.get(topic, DEFAULT_BATCH_BYTES)

    def forget(self) -> None:
        """Forget every topic."""
        self.ask_again()
        self._small.clear()

    def ask_again(self) -> None:
        """Query every topic again when a record names it: a topic may have been made or removed, or its limit changed.
        A producer that is made before that query still uses the small limits known so far, because such a limit may be
        the reason why a batch was refused."""
        self._limits.clear()
        self._unfit.clear()

    def close(self, topics: Mapping[str, str]) -> None:
        """Refuse all records for `topics`, a dictionary from topic to reason. Topics that an earlier call closed are
        opened again if they are not in `topics`."""
        for topic in topics.keys() - self._closed.keys():
            _log.warning("topic_refused", extra={"topic": topic, "reason": topics[topic]})
        for topic in topics.keys() ^ self._closed.keys():
            self._limits.pop(topic, None)
            self._unfit.pop(topic, None)
        self._closed = topics

    def blame(self, topic: str, reason: str) -> None:
        """Note that a record for a topic was not taken, for a reason that may pass."""
        self.troubles.blame(topic, reason)
        self._limits.pop(topic, None)

    @property
    def in_trouble(self) -> bool:
        """Return True if a topic is in trouble. Then call `well` with the topics that take records."""
        return bool(self.troubles)

    def well(self, topics: Iterable[str]) -> None:
        """Note that topics took records."""
        self.troubles.took(topics)

    # -- why a record is refused

    def _reason(self, row: Row) -> str:
        _, topic, _, _, names, contents = row
        if contents and isinstance(contents[0], Unreadable):
            return contents[0]
        if len(names) != len(contents):
            return f"{len(names)} header names, {len(contents)} header values"
        if None in names:
            return "a header without a name"
        if _is_nested(names) or _is_nested(contents):
            return "the header names or values are an array of arrays"
        if not is_legal_topic(topic):
            return "the topic's name is not legal in Kafka"
        if topic in INTERNAL_TOPICS:
            return _INTERNAL
        if self._own(topic):
            return _OWN
        if topic in self._unfit:
            return self._unfit[topic][0]
        if name := misleading_header(names, contents):
            return f"the value of its header {name!r} would be read as the harvester's own"
        return self._size_reason(row)

    def _is_too_large(self, row: Row) -> bool:
        """Return True if a record exceeds the known limit. If that limit is old, forget it, so that it is queried
        again."""
        if not self._size_reason(row):
            return False
        if boot_seconds() - self._asked_at.get(row[TOPIC], 0.0) > _RECHECK_SECONDS:
            self._limits.pop(row[TOPIC], None)
        return True

    def _size_reason(self, row: Row) -> str:
        size = _size(row)
        if size > self._most_bytes:
            return f"its size, {size} bytes, is above the client's message.max.bytes, {self._most_bytes}"
        limit = self._limits.get(row[TOPIC])
        if limit is not None and not self._compresses and size + _LEAST_OVERHEAD_BYTES > limit:
            return f"its size, {size} bytes, is above the topic's max.message.bytes, {limit}"
        return ""

    def _judge(self, topic: str) -> str:
        """Return why records for a topic in trouble are refused; an empty string while harvest waits for the topic."""
        troubles = self.troubles
        if topic in troubles.refused():
            return troubles.reason(topic)
        if not troubles.is_due(topic) or not (troubles.is_overdue(topic) or self._only_this_one(topic)):
            return ""
        self._limits.pop(topic, None)  # so that each page is checked
        reason = troubles.refuse(topic)
        _log.warning("topic_refused", extra={"topic": topic, "reason": reason})
        return reason

    def _only_this_one(self, topic: str) -> bool:
        """Return True if a topic is still in trouble, and another topic takes records now."""
        others = sorted(self._seen_well - self.troubles.topics)[:_MOST_ASKED]
        was_silent = self._is_silent
        answer = self._ask([topic, *others]) if others else None
        if answer is not None:  # forget deleted topics: a hundred of them would hide the topics that take records
            self._seen_well.difference_update(set(others) - answer.keys())
        found = answer or {}
        if (facts := found.pop(topic, None)) is not None:
            self._note(topic, facts)
        is_over = topic not in self.troubles or was_silent
        return not is_over and any(not each.trouble for each in found.values())

    # -- queries

    def _learn(self, topics: set[str]) -> None:
        now = boot_seconds()
        self._unfit = {topic: each for topic, each in self._unfit.items() if each[1] > now}
        self.troubles.forget_past()
        refused = self.troubles.refused()
        asked_at, troubles = self._asked_at, self.troubles.topics
        just_asked = {each for each in troubles if 0 <= now - asked_at.get(each, now + 1) < _ASK_SECONDS}
        topics = topics - self._unfit.keys() - refused - just_asked
        if not topics or (existing := self._ask(topics)) is None:
            return
        for topic, facts in existing.items():
            self._note(topic, facts)
        for topic in topics - existing.keys():
            self._refuse(topic, _MISSING)
            self._small.pop(topic, None)

    def _note(self, topic: str, facts: Facts) -> None:
        self._asked_at[topic] = boot_seconds()
        if topic in self._closed:
            self._refuse(topic, self._closed[topic])
        elif facts.is_internal:
            self._refuse(topic, _INTERNAL)
        elif self._keep_all and "compact" in facts.cleanup_policy:
            policy = f"cleanup.policy={facts.cleanup_policy}"
            self._refuse(topic, f"{_COMPACTED} ({policy}), which `delivery: sequenced` cannot use")
        elif facts.is_denied:
            self.troubles.deny(topic, facts.trouble)
            self._limits.pop(topic, None)
        else:
            self._seen_well.add(topic)
            if not self.troubles.name(topic, facts.trouble):
                self._limits[topic] = facts.limit
                self._small.pop(topic, None)
                if facts.limit < DEFAULT_BATCH_BYTES:
                    self._small[topic] = facts.limit, boot_seconds() + _SMALL_SECONDS

    def _refuse(self, topic: str, reason: str) -> None:
        self._unfit[topic] = reason, boot_seconds() + _RECHECK_SECONDS

    def _ask(self, topics: Collection[str]) -> dict[str, Facts] | None:
        """Return facts about the existing topics among `topics`. Return None while no broker answers: then no record is
        refused here, and the delivery gets the error."""
        if not topics or boot_seconds() < self._ask_at:
            return None
        self._admin = self._admin or AdminClient(client_settings(self._settings))
        try:
            found = ask(self._admin, topics)
        except KafkaException as error:
            self._is_silent = True
            self._ask_at = boot_seconds() + _RECHECK_SECONDS
            _log.debug("topics_unknown", extra={"reason": error.args[0].str()})
            return None
        if self._is_silent:
            self._is_silent = False
            self.troubles.heard()
        return found


def _topics_of(rows: Sequence[Row]) -> Iterable[str]:
    if isinstance(rows, NativeRows) and rows.summary.is_plain:
        return rows.summary.topics
    return {row[1] for row in rows}


def _is_nested(texts: Sequence[object]) -> bool:
    """Return True if an array of texts has several dimensions, which the type of its column allows. The client would
    send the `str` of a Python list as the name of a header."""
    return bool(texts) and type(texts[0]) is list


def _size(row: Row) -> int:
    """Return the size of a record in bytes: key, value, header names and contents. Only texts and bytes count."""
    _, _, key, value, names, contents = row
    texts = [text for text in (key, value, *names, *contents) if isinstance(text, str | bytes)]
    return sum(len(text if isinstance(text, bytes) else text.encode()) for text in texts)
