"""The parts of a harvester, chosen by its configuration and its table, and the checks before its start."""

import logging
from dataclasses import dataclass
from functools import cache, partial

from harvest_lib.config import HarvestConfig
from harvest_lib.config.choices import Choices, ReadingMode
from harvest_lib.harvester.assembly.choices import read_choices, reads_table, resolved
from harvest_lib.harvester.assembly.engine import Engine, OwnParts
from harvest_lib.harvester.assembly.factory import refuse_bad_settings
from harvest_lib.harvester.assembly.pools import make_leadership, read_pool, refuse_group
from harvest_lib.harvester.assembly.preconditions import Preconditions
from harvest_lib.harvester.housekeeping.table_warnings import warn_of_table
from harvest_lib.harvester.housekeeping.table_watch import TableWatch
from harvest_lib.kafka_client import topic_partitions
from harvest_lib.leadership import Leadership
from harvest_lib.native import implementation
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect, require_session

_log = logging.getLogger("harvest_lib.harvester.harvest")  # its documented name


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a harvester that is about to start."""

    config: HarvestConfig
    """The configuration with `auto` resolved."""
    choices: Choices
    engine: Engine
    leadership: Leadership
    watch: TableWatch | None
    """Detects that the table was migrated after `auto` was resolved; None if a migration cannot change the choices."""

    def log(self, table: OutboxTable) -> None:
        """Log that the harvester has started, with its choices and their reasons."""
        way, choices = implementation(), self.choices
        if unread := self.config.limits.without_effect:
            _log.info("limits_without_effect", extra={"limits": unread})
        _log.info(
            "harvester_started",
            extra={
                "instance": self.config.name,
                "table": str(table),
                "hand_over": way.name,
                "hand_over_reason": way.reason,
                "source": choices.source,
                "source_reason": choices.source_reason,
                "delivery": choices.delivery,
                "delivery_reason": choices.delivery_reason,
                "leadership": choices.leadership,
                "leadership_reason": choices.leadership_reason,
            },
        )


def choose_parts(given: HarvestConfig, table: OutboxTable, own: OwnParts) -> Parts:
    """Check that Postgres, the outbox table and Kafka can be used, and return the parts. Raises HarvestError if a check
    fails."""
    conninfo = given.data_source.conninfo()
    with connect(conninfo) as connection:
        choices = read_choices(given, connection, table, marks=own.mark)
        config = resolved(given, choices, table, marks=own.mark)
        if config.delivery != given.delivery and own.delivery is None:
            refuse_bad_settings(config, own.producer_provider)
        pool = cache(partial(read_pool, config))  # read once, at the start
        preconditions = Preconditions(
            config,
            table,
            mode=ReadingMode.of("mark", "barrier", stops=config.parking == "stop") if own.mark else config.mode,
            pool=pool,
            consumer_provider=own.consumer_provider,
            producer_provider=own.producer_provider,
        )
        preconditions.require(connection)
        warn_of_table(connection, config, table)
    require_session(conninfo)
    topic_partitions(config.kafka_settings(for_producer=False))
    if own.leadership is None and (given.leadership, config.leadership) == ("auto", "postgres"):
        refuse_group(config)
    may_change = reads_table(given) and config.mode.marks and not own.mark
    return Parts(
        config=config,
        choices=choices,
        engine=Engine(config, table, own, pool=pool, preconditions=preconditions),
        leadership=own.leadership or make_leadership(config, own.consumer_provider, own.producer_provider, pool),
        watch=TableWatch(conninfo, table, choices) if may_change else None,
    )
