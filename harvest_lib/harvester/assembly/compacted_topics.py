"""Start-up check for topics that a delivery by acknowledgements cannot use, where a subscription is limited to them.

An acknowledgement has no key, and a compacted topic takes no message without a key; and compaction would remove pending
records that a reader has still to find. A record that names such a topic is parked and stops no delivery, see
`harvest_lib.delivery.Topics`.
"""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.delivery import Topics
from harvest_lib.errors import TopicCompacted
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import in_statement, translated

_FILTER = "SELECT DISTINCT unnest(topics) FROM {subscriptions} WHERE subscription = %(subscription)s"


def refuse_compacted(
    connection: psycopg.Connection[Any], outbox: OutboxTable, subscription: str, topics: Topics
) -> None:
    """Raise TopicCompacted if the subscription is limited to a compacted topic. Kafka's internal topics do not count:
    their records are parked."""
    with translated():
        statement = sql.SQL(_FILTER).format(subscriptions=in_statement(outbox.subscriptions.identifier))
        found = {topic for (topic,) in connection.execute(statement, {"subscription": subscription})}
    if compacted := topics.compacted(found):
        raise TopicCompacted(
            f"the topic {compacted[0]!r} is compacted, and `delivery: sequenced` cannot use it: acknowledgements have "
            "no key, and compaction removes records that are still to be acknowledged",
            evidence=f"`cleanup.policy` has `compact`, of {len(compacted)} of the {len(found)} topics that the "
            f"subscription {subscription!r} is limited to",
            next_step=f"kafka-configs.sh --bootstrap-server … --alter --topic {compacted[0]} --add-config "
            "cleanup.policy=delete; or use `delivery: transactional`",
        )
