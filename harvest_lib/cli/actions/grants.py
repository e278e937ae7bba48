"""What `harvest grants` works out from its options."""

from harvest_lib.cli.options import Source
from harvest_lib.config import HarvestConfig
from harvest_lib.database import connect
from harvest_lib.errors import ConfigError
from harvest_lib.grants import ReadingMode
from harvest_lib.outbox import OutboxTable
from harvest_lib.record import is_legal_topic


def reading_mode(harvest: HarvestConfig, outbox: OutboxTable, source: Source | None = None) -> ReadingMode:
    """Return how a configuration reads records. If it leaves that open, the table decides."""
    kind = source or harvest.source
    if reads_table(harvest, source):
        with connect(harvest.data_source.conninfo()) as connection:
            kind = "snapshot" if outbox.kind(connection) == "native" else "mark"
    if kind == "mark":
        return "mark_batches" if harvest.exactly_once else "mark"
    return "batches"


def reads_table(harvest: HarvestConfig, source: Source | None) -> bool:
    """Tell whether only the table shows how it is read."""
    return (source or harvest.source) == "auto" and harvest.columns is None


def separate_roles(writers: dict[str, list[str] | None], *others: str) -> dict[str, list[str] | None]:
    """Return the writers. Raise ConfigError for a role with two parts: the grants of one would undo the other's."""
    names = [*writers, *filter(None, others)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"the role {name!r} is used for two parts",
                field="--writer, --harvester, --reader",
                next_step="use a separate role for each part; one login can be a member of both",
            )
    return writers


def allowed_topics(names: list[str], allowed: list[str]) -> dict[str, list[str] | None]:
    writers: dict[str, list[str] | None] = dict.fromkeys(names)
    for each in allowed:
        name, _, topic = each.rpartition("=")  # a topic's name has no `=`
        if name not in writers or not is_legal_topic(topic):
            raise ConfigError(
                "the value of --allow is invalid",
                field="--allow",
                next_step="write ROLE=TOPIC, the role as in --writer, the topic by a-z, A-Z, 0-9, `.`, `_` and `-`",
            )
        writers[name] = [*(writers[name] or []), topic]
    return writers


def principal_name(name: str) -> str:
    return name if ":" in name else f"User:{name}"
