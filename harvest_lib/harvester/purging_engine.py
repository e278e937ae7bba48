"""Engine of a table that is marked and delivered at least once: a batch counts once its rows are purged."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from confluent_kafka import Producer

from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import Delivery, Topics
from harvest_lib.harvester.added_partitions import Added, PartitionWatch
from harvest_lib.harvester.engine import Callbacks, Engine, make_loop, make_size
from harvest_lib.harvester.factory import make_purging_delivery, make_purging_pages, make_source, make_topics
from harvest_lib.harvester.other_readers import acknowledge_pending, before_term
from harvest_lib.kafka_client import KafkaProducerProvider
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable, translate_table_errors
from harvest_lib.record import Row
from harvest_lib.source import ClaimSource, MarkPages


class PurgingEngine(Engine):
    """`Engine` that marks, delivers and purges; one shard. An embedder may bring the source and the delivery."""

    def __init__(
        self,
        config: HarvestConfig,
        table: OutboxTable,
        *,
        source: ClaimSource | None = None,
        delivery: Delivery | None = None,
        producer_provider: KafkaProducerProvider = Producer,
    ) -> None:
        self._config = config
        self._table = table
        self._producer_provider = producer_provider
        self._source = source or make_source(config, table)
        self._delivery = delivery
        self._topics = topics = make_topics(config) if delivery is None else _UnknownTopics({})
        self._watch = PartitionWatch(config.kafka_settings(for_producer=False), lambda: topics.names)
        self._size = make_size(config)
        self._pages: MarkPages | None = None  # of the previous term

    def loop(self, term: Term, stopping: threading.Event, callbacks: Callbacks) -> BatchLoop:
        config, topics = self._config, self._topics
        before_term(
            config,
            term,
            stopping,
            partial(acknowledge_pending, config, self._table, term.leader_id, self._producer_provider),
        )
        topics.forget()
        self._watch.begin(term, stopping)
        if self._pages is not None:
            self._pages.await_closed()
        self._pages = pages = make_purging_pages(config, self._source, term)
        delivery, store = make_purging_delivery(config, topics, pages, self._producer_provider, self._delivery)
        return make_loop(
            config,
            term,
            stopping,
            callbacks,
            source=pages,
            delivery=delivery,
            store=store,
            parking=MarkedParking(config.parking, topics, pages),
            topics=topics,
            size=self._size,
            translate_errors=self._translate_table_errors,
        )

    def _translate_table_errors(self) -> AbstractContextManager[None]:
        tables = [self._table, *([self._table.parked] if self._config.mode.parks_rows else [])]
        return translate_table_errors(self._config.data_source.conninfo, tables, self._table.check_columns)

    @property
    def added_partitions(self) -> Sequence[Added]:
        return self._watch.added


class _UnknownTopics(Topics):
    """Topics of an embedder's delivery, which reports rejected records itself: no broker is queried."""

    def refused(self, rows: Sequence[Row], largest: int | None = None) -> dict[int, str]:  # noqa: ARG002 - the delivery checks
        return {}

    def oversized(self, rows: Sequence[Row], largest: int) -> set[int]:  # noqa: ARG002 - the delivery checks
        return set()
