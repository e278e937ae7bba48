"""Decides how many shards a process runs, by its limit of open files and by the connections that the database grants.

Each shard has a Kafka client and a database connection. If there is no room for all shards, some shards wait, and take
turns with the running shards. A turn lasts TURN_SECONDS. The wait is logged once, with the cause and the next step. If
the database refuses a connection that a shard had before, the shard soon tries again: Postgres ends a session a moment
after the session's client has ended.
"""

import logging
import re

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.postgres.postgres_causes import opens_no_session
from harvest_lib.process import open_files

_log = logging.getLogger(__name__)

TURN_SECONDS = 10.0
_FILES_EACH, _RESERVED_FILES = 16, 64
"""Least number of files assumed for a shard (14 were counted with one broker), and number of files left free for other
uses. If more files per shard are counted, the higher number is assumed."""
_FILES_UNMEASURED = 128
"""Number of files assumed for a shard until its files are counted: each broker needs two."""
_OPENING_SECONDS = 3.0
"""Time after which a shard that has begun is assumed to have opened all its files."""
_AGAIN_SECONDS, _LONGEST_AGAIN_SECONDS = 2.0, 60.0
"""First and longest pause before twice as many connections are tried. The pause doubles after each failure."""
_NO_CONNECTION = re.compile("too many (connections|clients)|connection slots are reserved")


class ShardRoom:
    """Decides whether a further shard may begin. A single thread uses it, but any thread may call `refused`."""

    def __init__(self) -> None:
        self._files_before = open_files.used()
        self._files_each = _FILES_UNMEASURED
        self._began: list[float] = []
        self._most: int | None = None  # number of shards that get connections; None if no limit is known
        self._again_at, self._again_seconds = 0.0, _AGAIN_SECONDS
        self._held = 0  # the most shards that had a session at once, while other shards waited
        self._is_trying = False  # True while more shards are tried than the database has granted connections
        self._is_regaining = False  # True while connections are tried that the shards had before
        self._evidence = ""
        self._lacks_files_since: float | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        """Raise the process's limit of open files, and count the files that are open before any shard begins."""
        open_files.raise_limit()
        self._files_before = open_files.used()

    def admits(self, at_work: int) -> bool:
        """Return True if there is room for another shard beside `at_work` running shards, and count the shard as
        begun."""
        now = boot_seconds()
        self._began = [began for began in self._began if now - began < _OPENING_SECONDS]
        if self._most is not None and at_work >= self._most and now < self._again_at:
            return False
        settled, used = at_work - len(self._began), open_files.used()
        if settled > 0 and (settled >= len(self._began) or self._files_each == _FILES_UNMEASURED):
            self._files_each = max(_FILES_EACH, -(-(used - self._files_before) // settled))
        needed = (len(self._began) + 1) * self._files_each + _RESERVED_FILES
        if at_work and used + needed > open_files.limit():
            return False
        if self._most is not None and at_work >= self._most:
            self._try_more(at_work, now)
        self._began.append(now)
        return True

    def _try_more(self, at_work: int, now: float) -> None:
        if self._is_trying:  # the last try has succeeded
            self._again_seconds = _AGAIN_SECONDS
        self._is_regaining = self._held > at_work
        self._is_trying = not self._is_regaining
        self._most = self._held if self._is_regaining else max(2 * (self._most or 1), at_work + 1)
        self._again_at = now + self._again_seconds

    def refused(self, error: BaseException, others: int, holding: int, *, has_opened: bool) -> bool:
        """Return True if an error means that the database grants no further connection, while `others` shards run.

        `holding` of the other shards have a session. `has_opened`: another shard got a session after this shard had
        requested one. This shows that the server was neither starting nor shutting down, even if the text of the error
        is in an unknown language.
        """
        if not isinstance(error, DatabaseUnavailable) or not others:
            return False
        text = str(error)
        is_likely = has_opened or (self._most is not None and holding > 0)
        is_full = _NO_CONNECTION.search(text) is not None or (is_likely and opens_no_session(text))
        if is_full:
            if self._is_trying:
                self._again_seconds = min(2 * self._again_seconds, _LONGEST_AGAIN_SECONDS)
            if self._is_regaining:  # failed: another client has the connections
                self._held = holding
            seconds = _AGAIN_SECONDS if others < self._held else self._again_seconds
            self._is_trying = self._is_regaining = False
            self._most, self._again_at = max(1, holding), boot_seconds() + seconds
            self._evidence = error.evidence
        return is_full

    def log_waiting(self, waiting: int, at_work: int, holding: int) -> None:
        """Log that shards wait, once for each cause. If no shard waits and all running shards have a session, forget
        all limits."""
        if not waiting:
            self._lacks_files_since = None
            if at_work == holding:
                self._most, self._is_trying = None, False
                self._logged.clear()
                self._held, self._is_regaining = 0, False
                self._again_seconds = _AGAIN_SECONDS
            return
        if self._most is not None:
            self._most = max(self._most, holding)
            if holding >= self._held:
                self._held, self._is_regaining = holding, False
        by_database = self._most is not None and at_work >= self._most
        used, limit = open_files.used(), open_files.limit()
        if by_database:
            self._lacks_files_since = None
        elif used + self._files_each + _RESERVED_FILES <= limit:  # other free files are for shards that begin
            self._lacks_files_since = self._lacks_files_since or boot_seconds()
            if boot_seconds() - self._lacks_files_since < 2 * _OPENING_SECONDS:
                return
        cause = "database" if by_database else "files"
        if cause in self._logged:
            return
        self._logged.add(cause)
        if by_database:
            reason = f"the database gives no connection to more than {at_work} partitions: {self._evidence}"
            step = (
                "raise the role's CONNECTION LIMIT or `max_connections`, or start processes with another role or on "
                "other servers; until then partitions take turns"
            )
        else:
            reason = (
                f"there are no files left for more than {at_work} partitions: {used} of {limit} are open, "
                f"and each takes up to {self._files_each}"
            )
            step = (
                "raise the hard limit of open files (systemd: LimitNOFILE=, shell: ulimit -Hn), or start more "
                "processes; until then partitions take turns"
            )
        _log.error("shards_wait", extra={"waiting": waiting, "at_work": at_work, "reason": reason, "next_step": step})
