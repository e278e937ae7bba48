"""Checks of an outbox, its topics and its audits, with numbers.

backlog_age, backlog_size,    of the outbox; evaluated by each tick of the supervisor, or on request (`state_checks`)
parked, leader
schema                        of the business rows, the outbox rows and the audit's result (pandera)
lost, unknown, duplicates,    of the last audit; `lost`, `unknown` and `ordering` block downstream assets, whose data
ordering                      would be wrong; `duplicates` warns of copies that at-least-once delivery may make. A
                              failed check shows its first findings
expectations                  of the last audit, by the suite (Great Expectations)

An unknown number is not zero: a check that cannot read its input fails and reports why. A check of an audit that
compared nothing fails too.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_harvest.audit_results import FoundRows, last_audits, require_compared, sample
from dagster_harvest.commands import audit_command
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings, Thresholds
from harvest_lib.audit.last_audits import rows_query
from harvest_lib.audit.summary import AuditSummary, together
from harvest_lib.errors import HarvestError
from harvest_lib.subscriptions.backlog import Backlog

Verdict = dg.AssetCheckResult

_WARN, _ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


# -- judging: numbers in, a verdict out


def judged_backlog(waiting: Backlog, thresholds: Thresholds) -> tuple[Verdict, Verdict]:
    """Return the verdicts on the age and on the size of the backlog. A value equal to a threshold crosses it."""
    age = _graded(
        waiting.age_seconds,
        thresholds.backlog_age_warn_seconds,
        thresholds.backlog_age_error_seconds,
        what="the oldest record that waits is",
        unit="s old",
    )
    size = _graded(
        waiting.records,
        thresholds.backlog_warn_records,
        thresholds.backlog_error_records,
        what="waiting:",
        unit="records, estimated" if waiting.is_estimate else "records",
    )
    return age, size


def judged_lost(summary: AuditSummary) -> Verdict:
    """Fail if a record that was committed is not in Kafka."""
    return _none(summary, "lost", "committed and not in Kafka", lost=summary.lost, committed=summary.committed)


def judged_unknown(summary: AuditSummary) -> Verdict:
    """Fail if Kafka has a record of the harvester that was never committed, or not with its value."""
    return _none(
        summary,
        "unknown",
        "in Kafka and never committed, or not with that value",
        unknown=summary.unknown + summary.other_contents,
        other_contents=summary.other_contents,
        foreign_messages=summary.foreign_messages,
    )


def judged_ordering(summary: AuditSummary) -> Verdict:
    """Fail if a key's records came in another order than they were written."""
    return _none(summary, "reordered", "before one of their key that was written earlier", reordered=summary.reordered)


def judged_duplicates(summary: AuditSummary) -> Verdict:
    """Warn of copies that a term sent after another term had; fail if the same term sent a record twice.

    Delivery at least once makes such copies when a leader dies; no harvester sends a record twice in a term.
    """
    by_one_term = summary.duplicates_adjacent + summary.duplicates_separated
    total = by_one_term + summary.duplicates_cross_epoch
    return Verdict(
        passed=total == 0,
        severity=_ERROR if by_one_term else _WARN,
        description=f"{total:,} of {summary.records:,} records are copies, {by_one_term:,} of them by the same term",
        metadata={
            "duplicates_adjacent": summary.duplicates_adjacent,
            "duplicates_separated": summary.duplicates_separated,
            "duplicates_cross_epoch": summary.duplicates_cross_epoch,
            **_of(summary),
        },
    )


def _graded(value: float, warn: float, error: float | None, *, what: str, unit: str) -> Verdict:
    is_error = error is not None and value >= error
    metadata = {"value": float(value), "warn_at": float(warn)}
    if error is not None:
        metadata["error_at"] = float(error)
    return Verdict(
        passed=value < warn and not is_error,
        severity=_ERROR if is_error else _WARN,
        description=f"{what} {value:,.0f} {unit}",
        metadata=metadata,
    )


def _none(summary: AuditSummary, what: str, meaning: str, **numbers: int) -> Verdict:
    count = numbers[what]
    return Verdict(
        passed=count == 0,
        severity=_ERROR,
        description=f"{count:,} of {summary.records:,} records are {meaning}",
        metadata={**numbers, **_of(summary)},
    )


def _of(summary: AuditSummary) -> dict[str, Any]:
    return {
        "audit_id": summary.audit_id,
        "audited_at": dg.MetadataValue.timestamp(summary.at),
        "records": summary.records,
        **{name: count for name in ("keys", "keys_with_gaps") if (count := getattr(summary, name)) is not None},
    }


_JUDGES: Mapping[str, Callable[[AuditSummary], Verdict]] = {
    "lost": judged_lost,
    "unknown": judged_unknown,
    "ordering": judged_ordering,
    "duplicates": judged_duplicates,
}
_TABLES = {"lost": "lost", "unknown": "unknown", "ordering": "reorderings", "duplicates": "duplicates"}
"""The table of `harvest_audit` with the findings of each check."""
_NAMED_RECORDS = 3
_DOES_NOT_BLOCK = "duplicates"
"""The check that blocks no assets: consumers of an at-least-once delivery expect duplicates."""


def blocking_verdicts(summary: AuditSummary) -> list[Verdict]:
    """Return the verdicts on an audit by the checks that block downstream assets."""
    return [judge(summary) for name, judge in _JUDGES.items() if name != _DOES_NOT_BLOCK]


# -- the checks as Dagster runs them


def audit_checks(settings: OutboxSettings) -> dg.AssetChecksDefinition:
    """Return the checks of the last audit."""
    key = settings.audit_key

    @dg.multi_asset_check(
        name=f"{settings.name}_audit_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=key, blocking=name != _DOES_NOT_BLOCK, description=inspect.getdoc(judge))
            for name, judge in _JUDGES.items()
        ],
        required_resource_keys={settings.resource_key},
    )
    def audit(context: dg.AssetCheckExecutionContext) -> Iterator[Verdict]:
        try:
            resource = _resource(context, settings)
            with resource.connect() as connection:
                audits = last_audits(connection, settings, resource.table)
                summary = require_compared(together(audits), settings)
                verdicts = {name: judge(summary) for name, judge in _JUDGES.items()}
                for name in [name for name, verdict in verdicts.items() if not verdict.passed]:
                    found = sample(connection, [each.audit_id for each in audits], _TABLES[name])
                    verdicts[name] = with_findings(verdicts[name], name, found, audits, settings)
        except HarvestError as error:
            verdicts = {name: unreadable(error) for name in _JUDGES}
        for name, verdict in verdicts.items():
            yield named(verdict, name, key)
        if wrong := [each for name, each in verdicts.items() if not each.passed and name != _DOES_NOT_BLOCK]:
            raise stopped(wrong, settings)

    return audit


def with_findings(
    verdict: Verdict, name: str, found: FoundRows | None, audits: Sequence[AuditSummary], settings: OutboxSettings
) -> Verdict:
    """Return the failed verdict with the first records that it is about, and the next step."""
    rows = rows_query([each.audit_id for each in audits], _TABLES[name])
    next_step = f"{rows}; after a repair {audit_command(settings)}"
    shown: dict[str, Any] = {}
    description = verdict.description
    if found is not None:
        shown = {"sample": dg.MetadataValue.md(found.markdown), "records_found": ", ".join(found.records)}
        description = f"{verdict.description}, such as record {', '.join(found.records[:_NAMED_RECORDS])}"
    return Verdict(
        passed=False,
        severity=verdict.severity,
        description=description,
        metadata={**verdict.metadata, **shown, "next_step": next_step},
    )


def stopped(wrong: Sequence[Verdict], settings: OutboxSettings) -> dg.Failure:
    """Return the failure of a run whose audit did not pass: the numbers of the failed checks in a sentence."""
    causes = list(dict.fromkeys(str(each.description) for each in wrong))
    return dg.Failure(
        description=f"the audit of {settings.name} did not pass: {'; '.join(causes)}",
        metadata={"next_step": f"read the checks of {settings.audit_key.to_user_string()}"},
        allow_retries=False,
    )


def named(verdict: Verdict, name: str, key: dg.AssetKey) -> Verdict:
    """Return the verdict with the name of its check and the key of its asset."""
    return verdict._replace(check_name=name, asset_key=key)


def unreadable(error: HarvestError) -> Verdict:
    """Return the failed verdict of a check that could not read its input."""
    return Verdict(
        passed=False,
        severity=_ERROR,
        description=str(error),
        metadata={"cause": error.cause, "evidence": error.evidence or "none", "next_step": error.next_step},
    )


def _resource(context: dg.AssetCheckExecutionContext, settings: OutboxSettings) -> HarvesterResource:
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    return resource
