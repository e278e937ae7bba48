"""The operator that compares the topics of an outbox with the committed records."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from harvest_lib.airflow.audited import (
    MAX_BACKLOG_AGE,
    AuditFailed,
    named_topics,
    numbers_of,
    page_of,
    require_delivered,
    require_passed,
)
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import outbox_name, topic_names
from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.airflow.spark_job import SparkJobRefused, run_spark_job
from harvest_lib.airflow.tasks import task_path, tell_outlets
from harvest_lib.audit.stored import stored_audit
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.errors import FOUND_EXIT_CODE, NothingChecked

if TYPE_CHECKING:
    from airflow.sdk import Context

    from harvest_lib.config import HarvestConfig

_SPARK_MODULE = "harvest_lib.spark.audit"


class OutboxAuditOperator(OutboxOperator):
    """Prove that topics have every committed record, once and in order; fail with the numbers if they do not.

    The audit writes the tables of the schema `harvest_audit`. Its id is made from DAG, run and task, so that another
    try replaces the result. Returns the numbers (`AuditSummary`); the asset events of the task's `outlets` get the same
    numbers, the `topics` and the `day` of the run, so that a DAG can be scheduled on the proof.

    Raises AirflowFailException for anomalies, for an audit without a committed record, and for an error that another
    try would find again. Raises HarvestError if records wait too long or are parked, or if Postgres, Kafka or Spark
    failed: Airflow retries.
    """

    template_fields: Sequence[str] = ("conn_id", "topics", "committed", "audit_id", "spark_arguments")
    template_fields_renderers = {"committed": "sql"}  # noqa: RUF012 - Airflow reads a plain class attribute

    def __init__(
        self,
        *,
        topics: Sequence[str],
        committed: str | None = None,
        engine: Literal["process", "spark"] = "process",
        spark_arguments: Sequence[str] = (),
        audit_id: str | None = None,
        allow_empty: bool = False,
        max_backlog_age: timedelta = MAX_BACKLOG_AGE,
        **arguments: Any,
    ) -> None:
        """Make the task. `committed` is a query of the committed records, as for `harvest audit --committed`. An outbox
        whose rows are deleted on delivery needs it, unless `engine` is `spark`.

        `engine="process"` compares in the process of the task. `engine="spark"` runs the audit by Spark in a process of
        its own, with `spark_arguments`, such as `["--table", "orders", "--id-column", "order_id"]`; it needs the extra
        `spark`. `allow_empty` accepts an audit without a committed record. `max_backlog_age` is the time for which a
        record may wait; with `timedelta(0)` none may. Raises ValueError for another engine, and for `committed` with
        `engine="spark"`.
        """
        super().__init__(**arguments)
        if engine not in {"process", "spark"}:
            raise ValueError(f"engine={engine!r}: use 'process' or 'spark'")
        if engine == "spark" and committed is not None:
            raise ValueError(
                "committed is for engine='process'; with Spark name the table: spark_arguments=['--table'…"
            )
        self.topics = topics
        self.committed = committed
        self.engine = engine
        self.spark_arguments = spark_arguments
        self.audit_id = audit_id
        self.allow_empty = allow_empty
        self.max_backlog_age = max_backlog_age

    def execute(self, context: "Context") -> dict[str, Any]:
        """Audit, log the numbers, and return them."""
        with permanent(AuditFailed, NothingChecked, SparkJobRefused):
            topics = named_topics(self.topics)
            config = HarvestHook(self.conn_id).config()
            self._lineage.read += [outbox_name(config), *topic_names(config, topics)]
            audit_id = self.audit_id or task_path(context["ti"])
            if self.engine == "spark":
                summary = self._by_spark(config, topics, audit_id)
            else:
                summary = stored_audit(config, topics, audit_id=audit_id, committed=self.committed)
            self.log.info("audit of %s\n%s", ", ".join(topics), page_of(summary))
            require_passed(summary, allow_empty=self.allow_empty)
            require_delivered(config, summary, topics, self.max_backlog_age.total_seconds())
        numbers = numbers_of(summary)
        day = context["dag_run"].run_after.date().isoformat()
        tell_outlets(self, context, {**numbers, "topics": topics, "day": day})
        return numbers

    def _by_spark(self, config: "HarvestConfig", topics: Sequence[str], audit_id: str) -> AuditSummary:
        named = [word for topic in topics for word in ("--topic", topic)]
        arguments = ["--audit-id", audit_id, "--allow-empty", *named, *self.spark_arguments]
        found = run_spark_job(
            _SPARK_MODULE, config, arguments, say=lambda line: self.log.info("%s", line), well=[FOUND_EXIT_CODE]
        )
        numbers = {field.name: found[field.name] for field in fields(AuditSummary)}
        return AuditSummary(**{**numbers, "at": datetime.fromisoformat(found["at"])})
