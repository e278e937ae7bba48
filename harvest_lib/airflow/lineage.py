"""The datasets that a task reads and writes, for OpenLineage, with the names that OpenLineage's other sources use.

a table of Postgres   namespace postgres://HOST:PORT, name DATABASE.SCHEMA.TABLE
a topic of Kafka      namespace kafka://HOST:PORT, name TOPIC
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psycopg.conninfo import conninfo_to_dict

from harvest_lib.config import HarvestConfig
from harvest_lib.postgres.table_names import name_parts

_PORT, _SCHEMA = "5432", "public"


class DatasetName(NamedTuple):
    """The name of a dataset."""

    namespace: str
    name: str


@dataclass(slots=True)
class Lineage:
    """The datasets that a task has read and written so far."""

    read: list[DatasetName] = field(default_factory=list)
    written: list[DatasetName] = field(default_factory=list)

    def facets(self) -> Any:
        """Return both as Airflow's OpenLineage provider takes them: an OperatorLineage. It needs that provider."""
        from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415 - installed if asked for
        from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415

        def datasets(names: Sequence[DatasetName]) -> list[Any]:
            return [Dataset(namespace=each.namespace, name=each.name) for each in dict.fromkeys(names)]

        return OperatorLineage(inputs=datasets(self.read), outputs=datasets(self.written))


def outbox_name(config: HarvestConfig) -> DatasetName:
    """Return the name of the outbox table. A table without a schema is taken to be in `public`."""
    return table_name(config, config.outbox_table)


def table_name(config: HarvestConfig, table: str) -> DatasetName:
    """Return the name of a table in the outbox's database."""
    place = conninfo_to_dict(config.data_source.conninfo())
    host = str(place.get("host") or "localhost").split(",")[0]
    port = str(place.get("port") or _PORT).split(",")[0]
    *schema, name = name_parts(table)
    return DatasetName(
        f"postgres://{host}:{port}", f"{place.get('dbname') or place.get('user')}.{(*schema, _SCHEMA)[0]}.{name}"
    )


def topic_names(config: HarvestConfig, topics: Iterable[str]) -> list[DatasetName]:
    """Return the names of topics. The first of the bootstrap servers names the cluster."""
    server = str(config.base_kafka_config["bootstrap.servers"]).split(",")[0].strip().rpartition("//")[2]
    return [DatasetName(f"kafka://{server}", topic) for topic in topics]
