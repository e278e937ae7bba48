"""The reading side of harvest: it reads messages exactly once, by the design of Gazette.

A publisher gives every message an id, a version 1 UUID of RFC 4122 (`message_id`). The id has the sender of the
message, the message's number among the messages of this sender, and a flag. A message with the flag for pending takes
effect only when its sender acknowledges it. A reader passes messages through a `Sequencer`, which drops repeated
messages and holds pending messages until they are acknowledged or rolled back. `Publisher` writes such messages and
`read_committed` reads them. For each message read, a `Consumer` updates state and publishes further messages, exactly
once, whatever crashes.
"""

from harvest_lib.consume.checkpoint import Checkpoint, ShardId
from harvest_lib.consume.consumer import Consumer
from harvest_lib.consume.key_values import KeyValues, KeyValueStore, create_key_values
from harvest_lib.consume.limits import ShardLimits
from harvest_lib.consume.postgres_store import PostgresStore, create_tables
from harvest_lib.consume.reader import read_committed, read_uncommitted
from harvest_lib.consume.recovery_log import create_recovery_log
from harvest_lib.consume.shard import Fenced, Shard
from harvest_lib.consume.sqlite_store import SqliteStore
from harvest_lib.consume.store import StateRefused, Store
from harvest_lib.consume.transaction import Application, GroupApplication, Transaction
from harvest_lib.grants.consumer import consumer_grants
from harvest_lib.sequencing.batch import Batch, Message
from harvest_lib.sequencing.message_id import Clock, Flag, MalformedId, MessageId, new_producer_id, pack, unpack
from harvest_lib.sequencing.producer_state import ProducerState
from harvest_lib.sequencing.publisher import Intent, Publisher
from harvest_lib.sequencing.sequencer import Committed, Replay, Sequencer

__all__ = [
    "Application",
    "Batch",
    "Checkpoint",
    "Clock",
    "Committed",
    "Consumer",
    "Fenced",
    "Flag",
    "GroupApplication",
    "Intent",
    "KeyValueStore",
    "KeyValues",
    "MalformedId",
    "Message",
    "MessageId",
    "PostgresStore",
    "ProducerState",
    "Publisher",
    "Replay",
    "Sequencer",
    "Shard",
    "ShardId",
    "ShardLimits",
    "SqliteStore",
    "StateRefused",
    "Store",
    "Transaction",
    "consumer_grants",
    "create_key_values",
    "create_recovery_log",
    "create_tables",
    "new_producer_id",
    "pack",
    "read_committed",
    "read_uncommitted",
    "unpack",
]
