"""Checks by contract (pandera) and by expectation suite (Great Expectations); both are imported when a check runs.

A fault fails only one check. If another check judges a finding of the suite, the suite's check shows the finding, but
does not fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import dagster as dg
import psycopg
from psycopg import sql

from dagster_harvest.audit_results import last_summary
from dagster_harvest.audit_settings import AuditSettings
from dagster_harvest.checks import Verdict, named, unreadable
from dagster_harvest.extras import CONTRACTS, EXPECTATIONS, is_wanted
from dagster_harvest.import_path import imported
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.translation import translated

if TYPE_CHECKING:
    from harvest_lib.spark.quality.expectations import Failed

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


def contract_checks(settings: OutboxSettings) -> Sequence[dg.AssetChecksDefinition]:
    """Return the checks of an outbox's rows, and of its business rows if they have a contract. Raises ConfigError if
    they are asked for and a package is missing."""
    if not is_wanted(CONTRACTS, asked=settings.quality, field="quality"):
        return []
    # An outbox whose rows are deleted on delivery is mostly empty.
    checks = [_contract_check(settings, settings.outbox_key, f"{_CONTRACTS}.OUTBOX", _newest(), allow_empty=True)]
    writer, key = settings.writer, settings.business_key
    if key is not None and writer is not None and writer.contract is not None:
        business = OutboxTable.parse(str(writer.table))
        checks.append(_contract_check(settings, key, writer.contract, _newest(business)))
    return checks


def audit_quality_checks(settings: OutboxSettings, audit: AuditSettings) -> Sequence[dg.AssetChecksDefinition]:
    """Return the checks of the audits by contract and by expectation suite. A folder for Data Docs asks for the suite.
    Raises ConfigError as `contract_checks` does."""
    checks: list[dg.AssetChecksDefinition] = []
    if is_wanted(CONTRACTS, asked=settings.quality, field="quality"):
        contract = f"{_CONTRACTS}.AUDIT_SUMMARY"
        checks.append(_contract_check(settings, settings.audit_key, contract, _last_audit(settings)))
    asked, field = settings.quality, "quality"
    if asked is None and audit.docs_folder is not None:
        asked, field = True, "audit.docs_folder"
    if is_wanted(EXPECTATIONS, asked=asked, field=field):
        checks.append(_expectations_check(settings, audit))
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


def _expectations_check(settings: OutboxSettings, audit: AuditSettings) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=settings.audit_key,
        name="expectations",
        description="The expectation suite over the last audit. Fails for what no other check judges.",
        required_resource_keys={settings.resource_key},
    )
    def expectations(context: dg.AssetCheckExecutionContext) -> Verdict:
        from harvest_lib.spark.quality.expectations import expect_audit  # noqa: PLC0415 - ten seconds

        kept = Path(audit.docs_folder, settings.name) if audit.docs_folder is not None else None
        try:
            resource = _resource(context, settings)
            with resource.connect() as connection:
                frame = _last_audit(settings)(connection, resource.table)
            with TemporaryDirectory(prefix="harvest-docs-") as folder:
                checked = expect_audit(frame, docs=kept or Path(folder))
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
                **({"data_docs": dg.MetadataValue.path(checked.index)} if kept is not None else {}),
                **({"failed_expectations": _table(checked.failed)} if checked.failed else {}),
            },
        )

    return expectations


def _table(failed: "Sequence[Failed]") -> dg.TableMetadataValue:
    records = [{name: str(value) for name, value in asdict(each).items()} for each in failed]
    columns = [dg.TableColumn(name) for name in records[0]]
    return dg.MetadataValue.table([dg.TableRecord(each) for each in records], dg.TableSchema(columns))


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
