"""Note of a lost position, a file in the pipeline's folder: the source does not have the reader's position any more.

Some evidence disappears with time. The log of a server that was restored to an earlier time ends before the pipeline's
position only until new writes have extended it; a topic that lost its end grows again. So the first such error is
stored, and each later start fails with it, until an operator removes the file or moves the folder away.
"""

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from harvest_lib.errors import HarvestError, PositionLost
from harvest_lib.process.durable_files import sync_folder

_log = logging.getLogger(__name__)

FILE = "position_lost.json"


def require_none(folder: Path) -> None:
    """Raise the stored PositionLost if a pipeline's folder has a note."""
    path = folder / FILE
    with suppress(FileNotFoundError):
        raise _error(path, json.loads(path.read_text()))


def noted(folder: Path, error: HarvestError) -> HarvestError:
    """Store an error whose evidence disappears with time, and return it with the advice to remove the note. Return any
    other error unchanged."""
    if not error.wears_off:
        return error
    path = folder / FILE
    said = {
        "cause": error.cause,
        "evidence": error.evidence,
        "next_step": error.next_step,
        "found_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        if path.exists():  # the first error stays
            said = json.loads(path.read_text())
        else:
            beside = path.with_suffix(".new")
            with beside.open("w") as file:
                json.dump(said, file, ensure_ascii=False, indent=2)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(path)
            sync_folder(folder)
    except OSError as failure:
        _log.warning("position_lost_not_noted", extra={"reason": f"{failure.filename}: {failure.strerror}"})
        return error
    found = _error(path, said)
    found.__cause__ = error
    return found


def _error(path: Path, said: dict[str, str]) -> PositionLost:
    return PositionLost(
        said["cause"],
        evidence=f"{said['evidence']}; found at {said['found_at']}",
        next_step=f"{said['next_step']}. This is noted, as the evidence may wear off: once nothing is missing, or you "
        f"accept what is, remove the note and start again: rm {quote(str(path))}",
    )
