"""PgBouncer in front of a server."""

import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.machine import require
from support.waiting import eventually

from infra.chaos.namespaces import has_program

PGBOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


@contextmanager
def pooler(dsn):
    """Give a function that starts a pooler in a mode and returns how to connect to it; all end with the block."""
    lacking = None if has_program("pgbouncer") else "there is no pgbouncer: `make setup` installs it, as root on Debian"
    require(lacking, "pgbouncer")
    server, running = conninfo_to_dict(dsn), []
    folder = TemporaryDirectory()  # pytest's own is closed to the pooler's user

    def start(mode, ignored="options"):
        port = _free_port()
        users, settings = Path(folder.name) / "users", Path(folder.name) / "pgbouncer.ini"
        users.write_text(f'"{server["user"]}" "{server.get("password", "")}"\n')
        settings.write_text(
            f"[databases]\n{server['dbname']} = host={server['host']} port={server['port']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\nauth_file = {users}\n"
            f"pool_mode = {mode}\nunix_socket_dir =\nignore_startup_parameters = extra_float_digits,{ignored}\n"
        )
        for path in (Path(folder.name), users, settings):
            path.chmod(0o755)
        running.append(
            subprocess.Popen(
                [PGBOUNCER, "-u", "nobody", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        made = make_conninfo(dsn, host="127.0.0.1", port=port)

        def answers():
            try:
                psycopg.connect(made).close()
            except psycopg.OperationalError:
                return False
            return True

        eventually(answers, message="the pooler answers")
        return made

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
            process.wait(60)
        folder.cleanup()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
