"""The operator that fills the topics of a new subscription with records delivered before."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import outbox_name, topic_names
from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.airflow.spark_job import SparkJobRefused, run_spark_job
from harvest_lib.airflow.tasks import tell_outlets

if TYPE_CHECKING:
    from airflow.sdk import Context

_SPARK_MODULE = "harvest_lib.spark.replay"
_PROGRESS_SECONDS = 10.0


class ReplayOperator(OutboxOperator):
    """Fill the topics of a new subscription with records delivered before, by Spark. It needs the extra `spark`.

    The log shows the progress. A task that is killed or fails leaves the subscription partly filled; the next try
    continues, and readers of committed records see each record once. `harvest run` with the subscription goes on from
    there. Returns the report: `subscription`, `records`, `parts`, `seconds`, `already_filled`. Raises
    AirflowFailException for what another try would find again, else HarvestError.
    """

    template_fields: Sequence[str] = ("conn_id", "subscription", "topics", "archive")

    def __init__(
        self,
        *,
        subscription: str,
        topics: Mapping[str, str] | Sequence[str],
        archive: str = "",
        without_dropped: bool = False,
        **arguments: Any,
    ) -> None:
        """Make the task. `topics` maps each topic of the outbox to the topic to fill, which has to exist, empty; a list
        of texts such as `orders=orders.v2` does the same, and templates can make both names. `archive` is the URL of
        the outbox's archive. With `without_dropped` records that were dropped may be missing. The connection's role
        owns the outbox."""
        super().__init__(**arguments)
        self.subscription = subscription
        self.topics = topics
        self.archive = archive
        self.without_dropped = without_dropped

    def execute(self, context: "Context") -> dict[str, Any]:
        """Replay, and return the report."""
        arguments = ["--subscription", self.subscription, "--progress-seconds", str(_PROGRESS_SECONDS)]
        named = list(map("=".join, self.topics.items()) if isinstance(self.topics, Mapping) else self.topics)
        arguments += [word for each in named for word in ("--topic", each)]
        arguments += ["--archive", self.archive] if self.archive else []
        arguments += ["--without-dropped"] if self.without_dropped else []
        with permanent(SparkJobRefused):
            config = HarvestHook(self.conn_id).config()
            self._lineage.read.append(outbox_name(config))
            self._lineage.written += topic_names(config, [each.rpartition("=")[2] for each in named])
            report = run_spark_job(_SPARK_MODULE, config, arguments, say=lambda line: self.log.info("%s", line))
        tell_outlets(self, context, report)
        return report
