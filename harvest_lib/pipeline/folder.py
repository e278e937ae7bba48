"""The folder of a pipeline, opened for writing: by one process at a time.

flights.pipeline/
  commit/          the commit log, and the lock
  offsets/         a log of offsets for each writer
  parked/          a file for each writer that has parked messages
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.declaration import Declaration, DeclaredWriter
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.offset_log import OffsetLog, flushed_position
from harvest_lib.pipeline.parked_messages import ParkedMessages
from harvest_lib.pipeline.routing import Routing
from harvest_lib.pipeline.settings import name_complaint
from harvest_lib.pipeline.writer_progress import WriterProgress
from harvest_lib.process.durable_files import make_folder

_log = logging.getLogger(__name__)


def commit_folder(folder: Path) -> Path:
    """Return the folder of a pipeline's commit log."""
    return folder / "commit"


def offsets_folder(folder: Path, writer: str = "") -> Path:
    """Return the folder of a writer's offsets, or the folder of all writers' offsets."""
    return folder / "offsets" / writer


def parked_messages(folder: Path, writer: str) -> ParkedMessages:
    return ParkedMessages(folder / "parked" / f"{writer}.jsonl")


def undeclared_positions(declaration: Declaration) -> Mapping[str, int]:
    """Return the positions of writers that have offsets in the folder and are not declared, by their names."""
    folder, declared = offsets_folder(declaration.folder), {each.name for each in declaration.writers}
    found = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []
    others = [name for name in found if name not in declared and not name_complaint(name)]
    return {name: flushed_position(folder / name) for name in others if CommitLog.is_there(folder / name)}


class OpenLogs:
    """A pipeline's commit log, and the offsets of its writers."""

    def __init__(self, declaration: Declaration, log: CommitLog, offsets: Mapping[str, OffsetLog]) -> None:
        self.log = log
        self.offsets = offsets
        self.message_cache = MessageCache(log.end)
        self.abandoned = False
        """True if a thread that did not end still uses them: errors of closing them are ignored."""
        self._declaration = declaration

    def writer_progress(self, declared: DeclaredWriter) -> WriterProgress:
        """Return a writer's progress, from its offsets on the disk. Raises OffsetBeyondLog."""
        park = None
        if declared.settings.on_transform_error == "park":
            park = parked_messages(self._declaration.folder, declared.name).add
        return WriterProgress(
            declared.name,
            log=self.log,
            offsets=self.offsets[declared.name],
            routing=Routing(declared.settings.namespace, declared.transforms, park=park),
            message_cache=self.message_cache,
            batch_messages=declared.settings.batch_messages,
            flush_seconds=self._declaration.settings.flush_seconds,
        )


@contextmanager
def open_folder(declaration: Declaration) -> Iterator[OpenLogs]:
    """Open the folder, made if need be. Raises PipelineError, and LogError: another process may have it."""
    folder, settings = declaration.folder, declaration.settings
    with ExitStack() as closing:
        try:
            for needed in (folder, offsets_folder(folder), parked_messages(folder, "").path.parent):
                make_folder(needed)
            log = CommitLog(
                commit_folder(folder),
                segment_bytes=settings.commit_log.segment_bytes,
                sync_seconds=settings.commit_log.sync_seconds,
            )
            closing.callback(log.close)
            offsets = {}
            for each in declaration.writers:
                offsets[each.name] = OffsetLog(offsets_folder(folder, each.name), sync_log=log.sync)
                closing.callback(offsets[each.name].close)
            logs = OpenLogs(declaration, log, offsets)
        except OSError as error:
            raise PipelineError(
                "the pipeline's folder cannot be used",
                evidence=f"{error.filename or folder}: {error.strerror}",
                next_step="check its owner, its mount options and its free space; or choose another `folder`",
            ) from error
        for cut in (*log.repaired, *(each for offset_log in offsets.values() for each in offset_log.repaired)):
            found = {"file": str(cut.path), "byte": cut.byte, "cut_bytes": cut.size_bytes, "goes_on_at": cut.offset}
            _log.warning("log_repaired", extra=found)
        try:
            yield logs
        finally:
            with nullcontext() if not logs.abandoned else suppress(Exception):
                closing.pop_all().close()
