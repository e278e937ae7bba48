"""Checks by contract (pandera) and by expectation suite (Great Expectations); both are imported when a check runs.

A fault fails only one check. If another check judges a finding of the suite, the suite's check shows the finding, but
does not fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from psycopg import sql

from dagster_harvest.audit_results import last_summary
from dagster_harvest.checks import Verdict, named, unreadable
from dagster_harvest.import_path import imported
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import translated

SAMPLED_ROWS = 10_000
"""The number of rows that a contract checks: the newest rows of the table. The types of columns hold for the whole
table."""

JUDGED_ELSEWHERE = frozenset(
    {
        *("lost", "unknown", "other_contents", "reordered", "keys_with_gaps"),
        *("duplicates_adjacent", "duplicates_separated", "duplicates_cross_epoch"),
        *("backlog_records", "backlog_age_seconds"),
    }
)
"""Columns of the summary whose limits other checks judge."""

# The first column numbers the rows, in the outbox and in every table that Spark's example creates.
_NEWEST = "SELECT * FROM {table} ORDER BY 1 DESC LIMIT %s"

_CONTRACTS = "harvest_lib.spark.quality.contracts"

Read = Callable[["psycopg.Connection[Any]", OutboxTable], Any]
"""A function that reads a pandas frame. Its arguments are a connection and the outbox."""


def quality_checks(settings: OutboxSettings) -> Sequence[dg.AssetChecksDefinition]:
    """Return the checks of an outbox's rows, of its business rows if they have a contract, and of its audits."""
    checks = [
        # An outbox whose rows are deleted on delivery is mostly empty.
        _contract_check(settings, settings.outbox_key, f"{_CONTRACTS}.OUTBOX", _newest(), allow_empty=True),
        _contract_check(settings, settings.audit_key("summary"), f"{_CONTRACTS}.AUDIT_SUMMARY", _last_audit(settings)),
        _expectations_check(settings),
    ]
    writer, key = settings.writer, settings.business_key
    if key is not None and writer is not None and writer.contract is not None:
        business = OutboxTable.parse(str(writer.table))
        checks.append(_contract_check(settings, key, writer.contract, _newest(business)))
    return checks


def _contract_check(
    settings: OutboxSettings, key: dg.AssetKey, contract: str, read: Read, *, allow_empty: bool = False
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name="schema",
        blocking=True,
        description=f"Types, nulls and limits: the contract {contract}, compared with the newest rows.",
        required_resource_keys={settings.resource_key},
    )
    def schema(context: dg.AssetCheckExecutionContext) -> Verdict:
        from harvest_lib.spark.quality import contracts  # noqa: PLC0415 - pandas and pyspark come with it

        resource = _resource(context, settings)
        try:
            with resource.connect() as connection:
                frame = read(connection, resource.table)
            imported(contract, field="writer.contract").enforce(frame, allow_empty=allow_empty)
        except contracts.ContractBroken as error:
            verdict = unreadable(error)
            failing: Any = {f"failing_{number}": str(each) for number, each in enumerate(error.failures, 1)}
            return named(verdict._replace(metadata={**verdict.metadata, **_values(failing)}), "schema", key)
        except HarvestError as error:
            return named(unreadable(error), "schema", key)
        rows = len(frame)
        said = f"{rows:,} rows are as declared" if rows else "no rows to check: the columns alone are as declared"
        return named(Verdict(passed=True, description=said, metadata={"rows": rows}), "schema", key)

    return schema


def _expectations_check(settings: OutboxSettings) -> dg.AssetChecksDefinition:
    key = settings.audit_key("summary")

    @dg.asset_check(
        asset=key,
        name="expectations",
        description="The expectation suite over the last audit, with Data Docs. Fails for what no other check judges.",
        required_resource_keys={settings.resource_key},
    )
    def expectations(context: dg.AssetCheckExecutionContext) -> Verdict:
        from harvest_lib.spark.quality.expectations import expect_audit  # noqa: PLC0415 - ten seconds

        docs = Path(settings.audit.docs_folder or Path(context.instance.storage_directory()) / "data_docs")
        try:
            resource = _resource(context, settings)
            with resource.connect() as connection:
                frame = _last_audit(settings)(connection, resource.table)
            checked = expect_audit(frame, docs=docs / settings.name)
        except HarvestError as error:
            return unreadable(error)
        failed = [each for each in checked.failed if each.column not in JUDGED_ELSEWHERE]
        elsewhere = [each for each in checked.failed if each.column in JUDGED_ELSEWHERE]
        return Verdict(
            passed=not failed,
            description="; ".join(map(str, failed)) or f"{checked.expectations - len(elsewhere)} expectations are met",
            metadata={
                "expectations": checked.expectations,
                "failed": len(failed),
                "failed_and_judged_elsewhere": len(elsewhere),
                "data_docs": dg.MetadataValue.url(checked.url),
            },
        )

    return expectations


def _newest(table: OutboxTable | None = None) -> Read:
    """Return a function that reads the newest rows of a table, by default of the outbox."""

    def read(connection: "psycopg.Connection[Any]", outbox: OutboxTable) -> Any:
        return _frame(connection, sql.SQL(_NEWEST).format(table=(table or outbox).identifier), (SAMPLED_ROWS,))

    return read


def _last_audit(settings: OutboxSettings) -> Read:
    def read(connection: "psycopg.Connection[Any]", outbox: OutboxTable) -> Any:
        import pandas as pd  # noqa: PLC0415 - as below

        return pd.DataFrame([asdict(last_summary(connection, settings, outbox))])

    return read


def _frame(connection: "psycopg.Connection[Any]", statement: sql.Composable, values: tuple[object, ...]) -> Any:
    import pandas as pd  # noqa: PLC0415 - a second, which a tick has no use for

    with translated():
        cursor = connection.execute(statement.as_string(connection), values)
        names = [column.name for column in cursor.description or ()]
        return pd.DataFrame(cursor.fetchall(), columns=names)


def _values(texts: dict[str, str]) -> dict[str, dg.MetadataValue[Any]]:
    return {name: dg.MetadataValue.text(text) for name, text in texts.items()}


def _resource(context: dg.AssetCheckExecutionContext, settings: OutboxSettings) -> HarvesterResource:
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    return resource
