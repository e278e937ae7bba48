"""`stack.json` in the state folder: the running servers, for other processes. The file exists while the stack is up."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from harvest_lib.conninfo import shown
from harvest_lib.local_stack.state import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server process of the stack. `url` is the address of its web interface; empty without such an interface."""

    name: str
    version: str
    pid: int
    port: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A running stack: its addresses and servers. `pid` and `started` identify the process that runs the stack."""

    dsn: str
    bootstrap_servers: str
    servers: tuple[Server, ...]
    pid: int
    started: float
    secure: str = ""
    """The folder with the files for clients of a secured stack; empty for an unsecured stack."""
    notes: dict[str, str] = field(default_factory=dict)
    """Additional lines to display, by title."""

    def to_json(self, *, with_password: bool = False) -> str:
        """Return the description as JSON. The password in the DSN is hidden by default."""
        content = asdict(self)
        if not with_password:
            content["dsn"] = shown(self.dsn)
        return json.dumps(content, indent=2)

    def save(self, state: Path) -> None:
        """Write `stack.json`. Only the owner can read it, because it contains the password."""
        write_private(state / "stack.json", self.to_json(with_password=True) + "\n")


def running(state: Path) -> Description | None:
    """Return the stack that is up in a state folder; None if no stack is up. A file that a crash left does not
    count."""
    try:
        content = json.loads((state / "stack.json").read_text())
    except FileNotFoundError:
        return None
    servers = tuple(Server(**server) for server in content.pop("servers"))
    description = Description(servers=servers, **content)
    return description if process_started(description.pid) == description.started else None


def process_started(pid: int) -> float | None:
    """Return the start time of a process; None if it has ended. A later process with the same id has another start
    time.

    On Linux the time is in clock ticks since the machine started, so that setting the clock does not change it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists() or not psutil.pid_exists(pid):
            return None
        return psutil.Process(pid).create_time()
    return None if fields[0] in "ZX" else float(fields[19])
