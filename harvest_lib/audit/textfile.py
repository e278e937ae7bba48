"""Metrics of the last audit, in a file for the textfile collector of node_exporter.

Promises
- The file is replaced atomically.
- If an audit ends without a result, the file keeps the findings and the time of the last complete audit, and records
  the failure.
"""

import errno
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from harvest_lib.errors import ConfigError
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Metric, Reading
from harvest_lib.telemetry.counts import Labels
from harvest_lib.telemetry.exposition import Collector

_SUFFIX = ".prom"
_Samples = Mapping[Metric, Mapping[Labels, float]]


@contextmanager
def audit_metrics(path: Path | None, topics: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield an empty dictionary, which the block fills with the counts of an audit, by finding. At the end of the
    block, write the counts as metrics to `path`; without a path, write nothing. If the block raises, the audit is
    recorded as failed.

    Raises ConfigError if the file cannot be written, or if the collector would not read it. As far as possible, both
    are checked before the block.
    """
    found: dict[str, int] = {}
    if path is None:
        yield found
        return
    label = ",".join(sorted(set(topics)))
    with _refused(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.name.endswith(_SUFFIX):
            raise ConfigError(
                f"the textfile collector reads only names that end in {_SUFFIX}",
                field="--metrics-file",
                source=str(path),
                next_step=f"name the file {path.with_suffix(_SUFFIX).name!r}",
            )
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    try:
        yield found
    except BaseException:
        with suppress(OSError):
            _write(path, {**_last_complete(path), catalogue.AUDIT_FAILED: {(label,): 1.0}})
        raise
    complete: _Samples = {
        catalogue.AUDIT_FINDINGS: {(label, name): float(count) for name, count in found.items()},
        catalogue.AUDIT_LAST_COMPLETE: {(label,): time.time()},
        catalogue.AUDIT_FAILED: {(label,): 0.0},
    }
    with _refused(path):
        _write(path, complete)


def _last_complete(path: Path) -> _Samples:
    """Return the samples of the last complete audit. Return no samples if the file does not exist or cannot be read."""
    try:
        families = {each.name: each for each in text_string_to_metric_families(path.read_text(encoding="utf-8"))}
        return {
            metric: {tuple(each.labels[name] for name in metric.labels): each.value for each in family.samples}
            for metric in (catalogue.AUDIT_FINDINGS, catalogue.AUDIT_LAST_COMPLETE)
            if (family := families.get(metric.name)) is not None
        }
    except (OSError, ValueError, KeyError):
        return {}


def _write(path: Path, samples: _Samples) -> None:
    class OfAudit:
        def readings(self) -> Iterable[Reading]:
            return samples.items()

    registry = CollectorRegistry()
    registry.register(Collector(OfAudit()))
    write_to_textfile(str(path), registry)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the file of metrics cannot be written: {error.strerror}",
            field="--metrics-file",
            source=str(path),
            next_step="name a file in a folder that exists and that this user may write to",
        ) from error
