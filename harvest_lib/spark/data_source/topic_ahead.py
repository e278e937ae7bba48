"""The offsets at which the micro-batches of a stream of topics end, found on the driver.

A task that begins within transactions of `delivery: sequenced` needs the state of their senders at its first offset.
Tasks cannot return anything to the driver, so the driver reads the messages of a micro-batch too, and keeps nothing of
them but this state. With the option `sequenced` off it reads only the last messages of each partition, for the identity
of the last record.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, OffsetSpec

from harvest_lib.clock import Deadline
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.reader import read_uncommitted
from harvest_lib.errors import KafkaError, TopicMissing
from harvest_lib.kafka_client import NO_LEADER_YET, LastError, answer_of, client_settings, refused_settings, translate
from harvest_lib.kafka_offsets import EARLIEST, LATEST, list_offsets
from harvest_lib.spark.data_source.topic_offsets import (
    Place,
    Position,
    TopicOffset,
    TopicPartition,
    lost,
    parts_between,
    shares,
)
from harvest_lib.spark.data_source.topic_options import TopicOptions
from harvest_lib.spark.data_source.topic_rows import position_required, require_unsequenced

_ANSWER_SECONDS = 10.0
_LEADER_SECONDS, _STEP_SECONDS = 10.0, 0.2
_END_SECONDS = 3.0
"""A leader that was just elected may not know the end of its log yet: a too early end is queried again this long."""
_TAIL = 50
"""Offsets at the end of a micro-batch that the driver reads if the option `sequenced` is off."""
_AT_A_TIME = 4
"""Partitions that the driver reads at the same time. Each needs up to 32 MB."""


class TopicAhead:
    """The driver's view of the topics. A single thread uses it."""

    def __init__(self, options: TopicOptions) -> None:
        """Connect lazily. Raises ConfigError if librdkafka refuses a setting."""
        self._options, self._said = options, LastError()
        with refused_settings("kafka.…"):
            self._admin = AdminClient(client_settings(options.kafka, error_cb=self._said))

    def close(self) -> None:
        """Close the connections."""
        self._admin.__exit__(None, None, None)  # it has no other way to close

    def ends(self) -> TopicOffset:
        """Return the ends of the committed records now, without the state that a next micro-batch needs.

        Raises TopicMissing, KafkaUnavailable or KafkaAccessDenied.
        """
        ids, places = self._describe()
        ends = self._offsets(places, LATEST)
        return TopicOffset(positions={place: Position.first(end) for place, end in ends.items()}, ids=ids)

    def after(self, at: TopicOffset, limit: int | None, until: TopicOffset | None = None) -> TopicOffset:
        """Return the offset that is at most `limit` messages after `at`, and not after `until`: `at` itself if there
        are no further messages and no further partitions.

        Raises PositionLost, the errors of `ends`, and ConfigError for a sequenced message against the options.
        """
        ids, places = self._describe()
        at.require_same(ids)
        if until is not None:
            places = [place for place in places if place in until.positions]
        ends = self._ends_after(at, places)
        if until is not None:
            ends = {place: min(end, until.positions[place].offset) for place, end in ends.items()}
        # A partition that a broker does not know yet stays as it is. Topics that are no longer read are left out.
        kept = {place: position for place, position in at.positions.items() if place[0] in ids}
        begins = {**kept, **self._starts(at, ends)}
        takes = shares({place: max(0, end - begins[place].offset) for place, end in ends.items()}, limit)
        going = [place for place, count in takes.items() if count]
        if not going and begins.keys() == at.positions.keys():
            return at
        with ThreadPoolExecutor(_AT_A_TIME, "harvest-ahead") as pool:
            reached = pool.map(lambda place: self._reach(place, begins[place], takes[place]), going)
            return TopicOffset(positions={**begins, **dict(zip(going, reached, strict=True))}, ids=ids)

    def between(self, start: TopicOffset, end: TopicOffset) -> list[TopicPartition]:
        """Return the parts between two offsets. Raises PositionLost if a topic was recreated."""
        found = parts_between(start, end)
        if found:
            ids, _ = self._describe()
            start.require_same(ids)
            end.require_same(ids)
        return [replace(each, begin=self._searched((each.topic, each.partition), each.begin)) for each in found]

    def batch(self) -> list[TopicPartition]:
        """Return the parts of a batch, from the start to the end that the options name."""
        nothing = TopicOffset(positions={}, ids={})
        _, places = self._describe()
        ends = self._offsets(places, LATEST)
        begins = self._starts(nothing, ends)
        if self._options.ending_ms is not None:
            ends = self._at_time(self._options.ending_ms, ends)
        return [TopicPartition(*place, begins[place], end) for place, end in ends.items() if end > begins[place].offset]

    # -- single steps

    def _reach(self, place: Place, begin: Position, count: int) -> Position:
        """Return the position `count` messages after `begin`."""
        end = begin.offset + count
        if self._options.sequenced:
            return self._read(place, self._searched(place, begin), end)
        found = self._read(place, begin, end, skip_to=end - _TAIL)
        return replace(found, unsearched=begin.offset)

    def _searched(self, place: Place, position: Position) -> Position:
        """Return a position with the state of the sequencer there, which it lacks if the option `sequenced` was off."""
        if position.unsearched is None or not self._options.sequenced:
            return position
        before = Position(begin=position.begin, offset=position.unsearched)
        return self._read(place, before, position.offset)

    def _read(self, place: Place, begin: Position, end: int, *, skip_to: int = 0) -> Position:
        """Read the messages from `begin` to before the offset `end`, without those before the offset `skip_to`."""
        sequencer = begin.sequencer()
        sequencer.pass_over(skip_to)
        with position_required():
            for batch in read_uncommitted(
                self._options.kafka,
                *place,
                begin=sequencer.offset,
                end=end,
                last=sequencer.last,
                reached=sequencer.pass_over,
            ):
                for _ in sequencer.take(batch):
                    pass
        require_unsequenced(self._options, place[0], sequencer)
        sequencer.prune_older(ShardLimits().prune_after_seconds, time.time_ns())
        return begin.at(sequencer)

    def _starts(self, at: TopicOffset, ends: Mapping[Place, int]) -> dict[Place, Position]:
        """Return where the partitions begin that are not in `at`. A partition that was added to a topic is read from
        its first offset on, whatever the options say."""
        new = [place for place in ends if place not in at.positions]
        found = dict.fromkeys((place for place in new if place[0] in at.ids), 0)
        first = {place: ends[place] for place in new if place not in found}
        if first and self._options.starting == "beginning":
            first = self._offsets(first, EARLIEST)
        elif first and isinstance(self._options.starting, int):
            first = self._at_time(self._options.starting, first)
        return {place: Position.first(offset) for place, offset in {**found, **first}.items()}

    def _ends_after(self, at: TopicOffset, places: Collection[Place]) -> dict[Place, int]:
        """Return the ends of the committed records. Raises PositionLost if an end is before the position in `at`."""
        deadline = Deadline(_END_SECONDS)
        while True:
            ends = self._offsets(places, LATEST)
            early = [each for each in places if each in at.positions and ends[each] < at.positions[each].offset]
            if not early:
                return ends
            if deadline.passed:
                (topic, partition), before = early[0], at.positions[early[0]].offset
                raise lost(
                    f"the log of {topic!r}, partition {partition}, lost its end",
                    f"it ends at {ends[early[0]]}, and all before {before} was read",
                )
            time.sleep(_STEP_SECONDS)

    # -- requests

    def _describe(self) -> tuple[dict[str, str], list[Place]]:
        """Return Kafka's id of each topic, and all partitions."""
        names = list(self._options.topics)
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=_ANSWER_SECONDS)
        ids, places = {}, []
        for name in names:
            try:
                found: Any = answer_of(asked[name], 2 * _ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() == ClientError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicMissing(
                        f"the topic {name!r} does not exist",
                        evidence=error.args[0].str(),
                        next_step="name a topic that the harvester delivers to",
                    ) from error
                raise self._translated(error.args[0]) from error
            ids[name] = str(found.topic_id)
            places += [(name, each.id) for each in found.partitions]
        return ids, sorted(places)

    def _at_time(self, milliseconds: int, ends: Mapping[Place, int]) -> dict[Place, int]:
        """Return the offset of the first record with this time or a later one, in each partition; the end if there is
        none."""
        found = self._offsets(ends, OffsetSpec.for_timestamp(milliseconds))
        return {place: end if found[place] < 0 else min(end, found[place]) for place, end in ends.items()}

    def _offsets(self, places: Collection[Place], spec: OffsetSpec) -> dict[Place, int]:
        """Return an offset of each partition. Waits some time for partitions that have no leader."""
        deadline = Deadline(_LEADER_SECONDS)
        while True:
            answers = list_offsets(
                self._admin,
                places,
                spec,
                isolation=IsolationLevel.READ_COMMITTED,
                timeout_seconds=_ANSWER_SECONDS,
            )
            failed = next((each for each in answers.values() if isinstance(each, ClientError)), None)
            if failed is None:
                return {place: offset for place, offset in answers.items() if isinstance(offset, int)}
            if failed.code() not in NO_LEADER_YET or deadline.passed:
                raise self._translated(failed)
            time.sleep(_STEP_SECONDS)

    def _translated(self, error: ClientError) -> KafkaError:
        self._admin.poll(0)  # the cause, if it was reported
        return translate(self._said.denied or error, settings=self._options.kafka, said=self._said.text)
