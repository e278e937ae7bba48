"""The folder of a pipeline. A single process at a time can open it for writing.

flights.pipeline/
  commit/          the commit log, and the lock
  offsets/         a folder per writer, with the log of its offsets
  parked/          a file per writer, with its parked messages
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
    """Return the folder of a writer's offsets; without a writer, the folder with the offsets of all writers."""
    return folder / "offsets" / writer


def parked_messages(folder: Path, writer: str) -> ParkedMessages:
    return ParkedMessages(folder / "parked" / f"{writer}.jsonl")


def undeclared_positions(declaration: Declaration) -> Mapping[str, int]:
    """Return the positions, by name, of writers that have offsets in the folder but are not declared."""
    folder, declared = offsets_folder(declaration.folder), {each.name for each in declaration.writers}
    found = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []
    others = [name for name in found if name not in declared and not name_complaint(name)]
    return {name: flushed_position(folder / name) for name in others if CommitLog.is_there(folder / name)}


class OpenLogs:
    """The open logs of a pipeline: the commit log, and the offset log of each declared writer."""

    def __init__(self, declaration: Declaration, log: CommitLog, offsets: Mapping[str, OffsetLog]) -> None:
        self.log = log
        self.offsets = offsets
        self.message_cache = MessageCache(log.end)
        self.abandoned = False
        """True if a thread that did not end in time still uses the logs. Errors of closing are then ignored."""
        self._declaration = declaration

    def writer_progress(self, declared: DeclaredWriter) -> WriterProgress:
        """Return the progress of a writer, starting at its flushed offsets. Raises OffsetBeyondLog if the log ends
        before these offsets."""
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
    """Open the logs in a pipeline's folder, and close them at the end of the block. A missing folder is created. Raises
    PipelineError, and LogError, for example LogInUse if another process has the folder open."""
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
