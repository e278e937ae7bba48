"""Alerts about the checks of an outbox and of its audits.

A tick reads the latest evaluation of each check by a single query, and compares it with the problems that were reported
before. A problem is reported when it begins and when it ends. It is reported again only if it became worse. A problem
that begins and ends between two ticks is not reported.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from dagster_harvest.alert import Alert
from dagster_harvest.outbox_state import STATE_CHECKS
from dagster_harvest.settings import OutboxSettings

AUDIT_CHECKS = ("lost", "unknown", "ordering", "duplicates", "expectations")

_GOOD, _WARN, _UNREADABLE, _ERROR = range(4)

_NEXT_STEP = "read the checks of {audit}, then the runbook HarvestAuditAnomalies"
"""The next step for a check of the audit whose metadata has none."""

_STATED = {"cause", "evidence", "next_step"}

Told = Mapping[str, int]
"""The level of each reported problem, keyed by `check NAME` or `daemon SLOT`. The level 0 means that it has ended."""


class AlertedChecks:
    """The changes of the checks since the problems that were reported before."""

    def __init__(self, instance: dg.DagsterInstance, settings: OutboxSettings) -> None:
        self._instance = instance
        self._settings = settings
        self._keys = {name: dg.AssetCheckKey(settings.outbox_key, name) for name in STATE_CHECKS}
        if settings.audit is not None:
            self._keys |= {name: dg.AssetCheckKey(settings.audit_key, name) for name in AUDIT_CHECKS}

    def changes(self, told: Told) -> Iterator[tuple[Alert, Told]]:
        """Return each alert with the levels of the problems that it reports. Checks that fail with the same text, such
        as the checks of a database that does not answer, have a single alert, and so have all recovered checks."""
        found = self._instance.event_log_storage.get_latest_asset_check_execution_by_key([*self._keys.values()])
        evaluations = {
            name: record.evaluation
            for name, key in self._keys.items()
            # A record of a run in progress has no verdict yet: the problem remains as it was reported.
            if (record := found.get(key)) is not None and isinstance(record.evaluation, dg.AssetCheckEvaluation)
        }
        failed: dict[tuple[int, str], list[str]] = defaultdict(list)
        recovered: list[str] = []
        for name, evaluation in evaluations.items():
            level, before = self._level(evaluation), told.get(f"check {name}", _GOOD)
            if level > before:
                failed[level, evaluation.description or ""].append(name)
            elif before > level == _GOOD:
                recovered.append(name)
        for (level, _), names in failed.items():
            yield self._failed(names, evaluations[names[0]]), {f"check {name}": level for name in names}
        if recovered:
            texts = "; ".join(f"{name}: {evaluations[name].description or 'passed'}" for name in recovered)
            alert = Alert(
                kind="check_recovered",
                outbox=self._settings.name,
                text=f"{self._settings.name}: checks are good again: {texts}",
                checks=tuple(recovered),
            )
            yield alert, {f"check {name}": _GOOD for name in recovered}

    def _level(self, evaluation: dg.AssetCheckEvaluation) -> int:
        if evaluation.passed:
            return _GOOD
        if evaluation.severity is dg.AssetCheckSeverity.WARN:
            return _WARN if self._settings.alerts.warn else _GOOD
        return _UNREADABLE if "cause" in evaluation.metadata else _ERROR

    def _failed(self, names: Sequence[str], evaluation: dg.AssetCheckEvaluation) -> Alert:
        stated = {name: str(value.value) for name, value in evaluation.metadata.items() if name in _STATED}
        text = evaluation.description or "failed"
        if "cause" in stated:
            text = "; ".join(filter(None, [stated["cause"], stated.get("evidence", "")]))
        audit = self._settings.audit_key.to_user_string()
        return Alert(
            kind="check_failed",
            outbox=self._settings.name,
            text=f"{self._settings.name}: {', '.join(names)}: {text}",
            next_step=stated.get("next_step") or (_NEXT_STEP.format(audit=audit) if names[0] in AUDIT_CHECKS else None),
            checks=tuple(names),
            severity="WARN" if evaluation.severity is dg.AssetCheckSeverity.WARN else "ERROR",
        )
