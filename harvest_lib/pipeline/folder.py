"""The folder of a pipeline, opened to be written: by one process at a time.

flights.pipeline/
  commit/          the commit log, and the lock
  offsets/         a log of offsets for each writer
  parked/          one file for each writer that has something parked
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.commit_log.files import make_folder
from harvest_lib.pipeline.declaration import Declaration, DeclaredWriter
from harvest_lib.pipeline.message_cache import Recent
from harvest_lib.pipeline.offset_log import OffsetLog
from harvest_lib.pipeline.parked_messages import Parked
from harvest_lib.pipeline.routing import Routing
from harvest_lib.pipeline.writer_progress import Writing

_log = logging.getLogger(__name__)


def commit_folder(folder: Path) -> Path:
    """Return where a pipeline's commit log is."""
    return folder / "commit"


def offsets_folder(folder: Path, writer: str = "") -> Path:
    """Return where a writer's offsets are, or those of all of them."""
    return folder / "offsets" / writer


def parked(folder: Path, writer: str) -> Parked:
    """Return what a writer has parked."""
    return Parked(folder / "parked" / f"{writer}.jsonl")


class OpenLogs:
    """A pipeline's commit log, and the offsets of its writers."""

    def __init__(self, declaration: Declaration, log: CommitLog, offsets: Mapping[str, OffsetLog]) -> None:
        self.log = log
        self.offsets = offsets
        self.recent = Recent()
        self.abandoned = False
        """A thread that would not end still uses them: errors of closing them say nothing."""
        self._declaration = declaration

    def writing(self, declared: DeclaredWriter) -> Writing:
        """Return where a writer stands. Raises OffsetBeyondLog."""
        park = None
        if declared.settings.on_transform_error == "park":
            park = parked(self._declaration.folder, declared.name).add
        return Writing(
            declared.name,
            log=self.log,
            offsets=self.offsets[declared.name],
            routing=Routing(declared.settings.namespace, declared.transforms, park=park, recent=self.recent),
            batch_messages=declared.settings.batch_messages,
            flush_seconds=self._declaration.settings.flush_seconds,
        )


@contextmanager
def opened(declaration: Declaration) -> Iterator[OpenLogs]:
    """Open the folder, made if need be. Raises PipelineError, and LogError: another process may have it."""
    folder, settings = declaration.folder, declaration.settings
    with ExitStack() as closing:
        try:
            for needed in (folder, offsets_folder(folder), parked(folder, "").path.parent):
                make_folder(needed)
            log = CommitLog.open(
                commit_folder(folder),
                segment_bytes=settings.commit_log.segment_bytes,
                sync_seconds=settings.commit_log.sync_seconds,
            )
            closing.callback(log.close)
            offsets = {}
            for each in declaration.writers:
                offsets[each.name] = OffsetLog.open(
                    offsets_folder(folder, each.name), flush_seconds=settings.flush_seconds, sync_log=log.sync
                )
                closing.callback(offsets[each.name].close)
            logs = OpenLogs(declaration, log, offsets)
        except OSError as error:
            raise PipelineError(
                "the pipeline's folder cannot be used",
                evidence=f"{error.filename or folder}: {error.strerror}",
                next_step="check who owns it, how it is mounted, and whether there is room; or choose another `folder`",
            ) from error
        for cut in (*log.repaired, *(each for offset_log in offsets.values() for each in offset_log.repaired)):
            found = {"file": str(cut.path), "byte": cut.byte, "cut_bytes": cut.size_bytes, "goes_on_at": cut.offset}
            _log.warning("log_repaired", extra=found)
        try:
            yield logs
        finally:
            with nullcontext() if not logs.abandoned else suppress(Exception):
                closing.pop_all().close()
