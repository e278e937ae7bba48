"""The thread that compacts the commit log now and then, and how far it may.

Promise: what any writer with offsets in the folder has not acknowledged stays in the log, a writer's too that is not
declared just now: it may be again.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from harvest_lib.errors import HarvestError
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.declaration import Declaration
from harvest_lib.pipeline.folder import offsets_folder
from harvest_lib.pipeline.offset_log import flushed_position
from harvest_lib.pipeline.settings import name_complaint
from harvest_lib.pipeline.stop_reason import in_a_line

_log = logging.getLogger(__name__)


def undeclared(declaration: Declaration) -> Mapping[str, int]:
    """Return where writers stand that have offsets in the folder, and are not declared, by their names."""
    folder, declared = offsets_folder(declaration.folder), {each.name for each in declaration.writers}
    found = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []
    others = [name for name in found if name not in declared and not name_complaint(name)]
    return {name: flushed_position(folder / name) for name in others if CommitLog.is_there(folder / name)}


class Compactor:
    """Compacts every so often, until it is stopped. What keeps it from that is no reason to stop a pipeline."""

    def __init__(self, declaration: Declaration, log: CommitLog, *, flushed: Callable[[], int]) -> None:
        """`flushed` says up to where the offsets of all declared writers are on the disk."""
        self._declaration = declaration
        self._every_seconds = declaration.settings.commit_log.compact_seconds
        self._log = log
        self._flushed = flushed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compactor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it. A compaction ends where it is; the next one does what it left."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while self._every_seconds and not self._ended.wait(self._every_seconds):
            try:
                up_to = min([self._flushed(), *undeclared(self._declaration).values()])
                compacted = self._log.compact(up_to, going_on=lambda: not self._ended.is_set())
            except (HarvestError, OSError) as error:
                _log.warning("commit_log_not_compacted", extra={"reason": in_a_line(error)})
            else:
                _log.debug("commit_log_compacted", extra={"what": str(compacted)})
