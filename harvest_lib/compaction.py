"""Topics that a delivery by acknowledgements cannot use, found out before anything starts, as far as they are known.

An acknowledgement has no key, and a compacted topic takes no message without one; and compaction would remove pending
records that a reader has still to find. Topics that records name later are found out when they do, see
`harvest_lib.delivery.Topics`.
"""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import in_statement, translated
from harvest_lib.delivery import COMPACTED, Topics
from harvest_lib.errors import TopicCompacted
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import Selection

_FILTER = "SELECT DISTINCT unnest(topics) FROM {subscriptions} WHERE subscription = %(subscription)s"

_NEWEST = """
SELECT DISTINCT kafka_topic FROM (SELECT {columns} FROM {table} ORDER BY {id} DESC LIMIT 1000) AS newest
"""

_ASIDE = """
SELECT DISTINCT kafka_topic FROM {set_aside} WHERE subscription = %(subscription)s AND reason = %(reason)s
"""


def refuse_compacted(
    connection: psycopg.Connection[Any], outbox: OutboxTable, selection: Selection, subscription: str, topics: Topics
) -> None:
    """Raise TopicCompacted if one of the topics is that the subscription is limited to, or else one that the newest
    records of the outbox name."""
    names = {
        "subscriptions": in_statement(outbox.subscriptions.identifier),
        "set_aside": in_statement(outbox.set_aside.identifier),
    }
    values = {"subscription": subscription, "reason": COMPACTED}

    def named(statement: sql.Composed) -> set[str]:
        return {topic for (topic,) in connection.execute(statement, values)}

    with translated():
        found = named(sql.SQL(_FILTER).format(**names))
        if not found:  # what has found its way aside for that reason keeps nobody from starting
            found = named(selection.fill(_NEWEST)) - named(sql.SQL(_ASIDE).format(**names))
    if compacted := topics.compacted(found):
        raise TopicCompacted(
            f"the topic {compacted[0]!r} is compacted, and `delivery: sequenced` cannot use it: what acknowledges "
            "records has no key, and compaction removes records that are still to be acknowledged",
            evidence=f"`cleanup.policy` has `compact`, of {len(compacted)} of {len(found)} topics that are known",
            next_step=f"kafka-configs.sh --bootstrap-server … --alter --topic {compacted[0]} --add-config "
            "cleanup.policy=delete; or use `delivery: transactional`",
        )
