"""Expectation suite of Great Expectations for the result of an audit, with Data Docs to read.

    checked = expect_audit(read_audit(dsn, "nightly"), docs=Path("site"))
    checked.ok, checked.failed, checked.index

Suite, validation and checkpoint are in a context that ends with the call. Nothing is configured on disk, nothing is
sent over the network, and only the pages under `docs` stay. Give the pages a folder of their own: each call replaces
the pages of earlier calls. An opened page loads its style and icons from public servers; without a network it is plain,
but shows all numbers.

Importing Great Expectations takes ten seconds, so the first call imports it, not this module.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from psycopg.rows import dict_row

from harvest_lib.errors import DatabaseError
from harvest_lib.postgres.translation import translated
from harvest_lib.spark.audit import MUST_BE_ZERO, AuditSummary
from harvest_lib.spark.quality.contracts import AUDIT_SUMMARY
from harvest_lib.spark.sink.database import connect

SUITE = "audit"
_SITE = "data_docs"

_READ = "SELECT * FROM harvest_audit.summary WHERE audit_id = %(audit_id)s"
_LATEST = "SELECT * FROM harvest_audit.summary ORDER BY at DESC LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """The highest values that raise no alarm; a limit of None is not checked. By default copies that another term sent
    (`duplicates_cross_epoch`) raise no alarm: at-least-once delivery makes such copies when a leader dies. Exactly-once
    delivery makes no such copies."""

    duplicates_cross_epoch: int | None = None
    foreign_messages: int | None = None
    delay_p99_ms: float | None = None
    backlog_age_seconds: float | None = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An expectation that is not met: the column, the expectation, and the value seen."""

    column: str
    expectation: str
    seen: object

    def __str__(self) -> str:
        return f"{self.column}: {self.expectation}, seen {self.seen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check: the number of expectations, the failed expectations, and the first page of Data Docs."""

    expectations: int
    failed: Sequence[Failed]
    index: Path

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def url(self) -> str:
        """The address of the pages for a browser on this machine."""
        return self.index.as_uri()


def read_audit(dsn: str, audit_id: str | None = None) -> pd.DataFrame:
    """Return the summary of an audit, by default the latest, as a frame of a single row. Raises DatabaseError."""
    with connect(dsn) as connection, translated(), connection.cursor(row_factory=dict_row) as cursor:
        query = _LATEST if audit_id is None else _READ
        exists = connection.execute("SELECT to_regclass('harvest_audit.summary') IS NOT NULL").fetchone()
        found = cursor.execute(query, {"audit_id": audit_id}).fetchall() if exists and exists[0] else []
    if not found:
        raise DatabaseError(
            "there is no such audit" if audit_id is not None else "there is no audit yet",
            evidence=f"harvest_audit.summary has no row{f' of {audit_id!r}' if audit_id is not None else ''}",
            next_step="run `python -m harvest_lib.spark.audit` first",
        )
    return pd.DataFrame(found)


def expect_audit(summary: AuditSummary | pd.DataFrame, *, docs: Path, limits: AuditLimits | None = None) -> Checked:
    """Check an audit's summary against the suite; build Data Docs under `docs`.

    Raises ContractBroken if `summary` does not fulfil the contract of a summary.
    """
    frame = pd.DataFrame([asdict(summary)]) if isinstance(summary, AuditSummary) else summary
    frame = AUDIT_SUMMARY.enforce(frame)
    audit_id = str(frame["audit_id"].iloc[0])
    gx = _great_expectations()
    context = _context(gx, docs.absolute())
    batch = (
        context.data_sources.add_pandas("harvest_audit")
        .add_dataframe_asset("summary")
        .add_batch_definition_whole_dataframe("one audit")
    )
    known = [name for name in MUST_BE_ZERO if frame[name].notna().all()]
    expectations = _expectations(gx, known, limits or AuditLimits())
    suite = context.suites.add(gx.ExpectationSuite(name=SUITE, expectations=expectations))
    validation = context.validation_definitions.add(
        gx.ValidationDefinition(name="audit summary", data=batch, suite=suite)
    )
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="audit",
            validation_definitions=[validation],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="pages", site_names=[_SITE])],
            result_format="BASIC",  # counts, and no rows
        )
    )
    result = checkpoint.run(
        batch_parameters={"dataframe": _plain(frame)},
        run_id=gx.core.run_identifier.RunIdentifier(run_name=f"audit {audit_id}"),
    )
    results = [each for run in result.run_results.values() for each in run.results]
    (address,) = context.build_data_docs(site_names=[_SITE]).values()
    return Checked(
        expectations=len(results),
        failed=tuple(_failed(each) for each in results if not each.success),
        index=Path(address.removeprefix("file://")),
    )


def _great_expectations() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx  # noqa: PLC0415 - ten seconds

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    return gx


def _context(gx: Any, docs: Path) -> Any:
    """Return a context that writes only pages, and does not use the network."""
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    for site in list(context.config.data_docs_sites or {}):
        context.delete_data_docs_site(site)
    context.add_data_docs_site(
        _SITE,
        {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
        },
    )
    return context


def _expectations(gx: Any, must_be_zero: Sequence[str], limits: AuditLimits) -> list[Any]:
    expect = gx.expectations
    wanted = [
        expect.ExpectTableRowCountToEqual(value=1),
        expect.ExpectColumnValuesToNotBeNull(column="audit_id"),
        expect.ExpectColumnMinToBeBetween(column="records", min_value=0),
        *(expect.ExpectColumnMaxToBeBetween(column=name, min_value=0, max_value=0) for name in must_be_zero),
    ]
    wanted += [
        expect.ExpectColumnMaxToBeBetween(column=name, max_value=most)
        for name, most in asdict(limits).items()
        if most is not None
    ]
    return wanted


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame in numpy's types, which Great Expectations supports best; nulls become NaN."""
    kinds = AUDIT_SUMMARY.columns.items()
    numbers = [
        name for name, column in kinds if column.kind == "double" or (column.kind == "bigint" and column.nullable)
    ]
    counts = [name for name, column in kinds if column.kind == "bigint" and not column.nullable]
    return frame.astype({**dict.fromkeys(numbers, "float64"), **dict.fromkeys(counts, "int64"), "audit_id": "object"})


def _failed(result: Any) -> Failed:
    given = result.expectation_config
    said = {
        name: value for name, value in given.kwargs.items() if name not in {"column", "batch_id"} and value is not None
    }
    return Failed(
        column=str(given.kwargs.get("column", "all")),
        expectation=f"{given.type}({', '.join(f'{name}={value}' for name, value in said.items())})",
        seen=result.result.get("observed_value", result.exception_info),
    )
