"""The report of the preflight checks: the checks that passed, and the problems found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from harvest_lib.errors import ConfigError, HarvestError

Area = Literal["configuration", "postgres", "kafka", "clock"]
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that a check found. An `error` prevents the start of the harvester, or the delivery of records. A
    `warning` prevents neither."""

    severity: Severity
    area: Area
    cause: str
    evidence: str
    next_step: str
    exit_code: int = 0

    @classmethod
    def of(cls, error: HarvestError, area: Area) -> "Finding":
        """Return a finding that reports an error."""
        return cls(
            severity="error",
            area="configuration" if isinstance(error, ConfigError) else area,
            cause=error.cause,
            evidence=error.evidence,
            next_step=error.next_step,
            exit_code=error.exit_code,
        )


@dataclass(slots=True)
class Report:
    """The findings, in the order of the checks, and the checks that passed."""

    findings: list[Finding] = field(default_factory=list)
    passed: list[tuple[Area, str]] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        return [each for each in self.findings if each.severity == "error"]

    @property
    def exit_code(self) -> int:
        """The exit code for a command: 0 without an error, else the code of the first error."""
        return next((each.exit_code for each in self.errors), 0)

    @contextmanager
    def step(self, area: Area, what: str) -> Iterator[None]:
        """Run the `with` block as a check. A HarvestError from the block becomes a finding. If the block adds no
        finding, the check has passed."""
        before = len(self.findings)
        try:
            yield
        except HarvestError as error:
            self.add(Finding.of(error, area))
        if len(self.findings) == before:
            self.passed.append((area, what))

    def run(self, area: Area, what: str, check: Callable[[], object]) -> bool:
        """Run a check as a step; return True if it added no finding."""
        before = len(self.findings)
        with self.step(area, what):
            check()
        return len(self.findings) == before

    def add(self, finding: Finding) -> None:
        """Add a finding, unless the report already contains an equal finding."""
        if finding not in self.findings:
            self.findings.append(finding)

    def warn(self, area: Area, cause: str, *, evidence: str, next_step: str) -> None:
        """Add a warning."""
        self.add(Finding(severity="warning", area=area, cause=cause, evidence=evidence, next_step=next_step))
