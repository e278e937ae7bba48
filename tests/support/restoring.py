"""Ways in which a Postgres comes back with less than was harvested from it."""

import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from support.servers import await_replicated
from support.waiting import eventually

from harvest_lib.local_stack import postgres
from harvest_lib.local_stack.postgres import PostgresServer

LOG = "SELECT pg_current_wal_flush_lsn()::text"
_QUIET = ("autovacuum = off", "bgwriter_lru_maxpages = 0", "checkpoint_timeout = '1h'")
_RECOVERED = "SELECT NOT pg_is_in_recovery()"
_MOMENT = "moment"


@contextmanager
def quiet_server(folder):
    """A server that writes nothing into its log by itself, to be put back."""
    made = PostgresServer(folder, durable=False)
    made.start()
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        for setting in _QUIET:
            connection.execute(f"ALTER SYSTEM SET {setting}")
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield made
    finally:
        made.kill()


@dataclass
class Restored:
    """A way to put a server back: `save` keeps a moment of it, while it runs, and `restore` has the server at that
    moment again, running, at the same address."""

    server: PostgresServer
    folder: Path

    def save(self):
        raise NotImplementedError

    def restore(self):
        raise NotImplementedError

    def _put_back(self, saved):
        self.server.kill()
        shutil.rmtree(self.server._data)
        copy(saved, self.server._data)

    def _base_backup(self):
        backup = PostgresServer(self.folder / "backup", durable=False)
        backup.copy(self.server, "backup")
        (backup._data / "standby.signal").unlink()
        return backup._data


def copy(source, target):
    """Copy a folder with owners and modes."""
    subprocess.run(["cp", "-a", source, target], check=True)


class ColdCopy(Restored):
    """A snapshot of the volume, of a server that was stopped."""

    def save(self):
        self.server.stop()
        copy(self.server._data, self.folder / "cold")
        self.server.start()

    def restore(self):
        self._put_back(self.folder / "cold")
        self.server.start()


class BaseBackup(Restored):
    """A base backup with the log that it needs, and nothing after: the timeline stays."""

    def save(self):
        self._backup = self._base_backup()

    def restore(self):
        self._put_back(self._backup)
        (self.server._data / "postgresql.auto.conf").write_text("")
        self.server.start()


class PointInTime(Restored):
    """Recovery to a point in time from base backup and archive: a new timeline, whose number comes again each time, as
    the archive has no histories."""

    def save(self):
        self._backup = self._base_backup()
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'after', 'the backup')")
            connection.execute("SELECT pg_create_restore_point(%s)", (_MOMENT,))
            connection.execute("SELECT pg_switch_wal()")
        self._archive = self.folder / "archive"
        shutil.rmtree(self._archive, ignore_errors=True)
        shutil.copytree(
            self.server._data / "pg_wal", self._archive, ignore=shutil.ignore_patterns("*.history", "xlogtemp.*")
        )
        self._archive.chmod(0o755)
        for each in self._archive.iterdir():
            each.chmod(0o755)

    def restore(self, *, is_earlier=False):
        """Recover to the moment, or to the end of the backup, which `is_earlier`."""
        self._put_back(self._backup)
        (self.server._data / "recovery.signal").touch()
        target = "recovery_target = 'immediate'" if is_earlier else f"recovery_target_name = '{_MOMENT}'"
        (self.server._data / "postgresql.auto.conf").write_text(
            f"restore_command = 'cp {self._archive}/%f %p'\n{target}\nrecovery_target_action = 'promote'\n"
        )
        self.server.start()
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            eventually(lambda: connection.execute(_RECOVERED).fetchone()[0], "it is recovered")


class Promotion(Restored):
    """Promotion of an asynchronous standby that heard nothing since."""

    def save(self):
        self._standby = PostgresServer(self.folder / "standby", durable=False)
        self._standby.copy(self.server, "standby")
        self._standby.start()
        await_replicated(self.server, self._standby)
        self._standby.stop()

    def restore(self):
        self._put_back(self._standby._data)
        self.server.start()
        self.server.promote()


class Reset(Restored):
    """`pg_resetwal` on a server that was killed: what its last checkpoint did not write is gone."""

    def save(self):
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def restore(self):
        self.server.kill()
        (self.server._data / "postmaster.pid").unlink(missing_ok=True)
        command = [self.server._binary("pg_resetwal"), "-f", "-D", self.server._data]
        user, data = postgres._unprivileged(), self.server._data
        self.server._run(command, user, data, "it could not be reset", postgres._environment())
        self.server.start()


WAYS = {
    "cold copy": ColdCopy,
    "base backup": BaseBackup,
    "point in time": PointInTime,
    "promotion": Promotion,
    "pg_resetwal": Reset,
}
