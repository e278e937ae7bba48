"""`stack.json` in the state folder: the running servers, for other processes. It exists as long as the stack is up."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from harvest_lib.conninfo import shown
from harvest_lib.local_stack.state import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One process of the stack."""

    name: str
    version: str
    pid: int
    port: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A stack that is up: where to connect, its processes, and the process that holds it."""

    dsn: str
    bootstrap_servers: str
    servers: tuple[Server, ...]
    pid: int
    started: float
    secure: str = ""
    """The folder with the files for clients of a secured stack; empty for one that is not."""
    notes: dict[str, str] = field(default_factory=dict)
    """Further lines to show, by their titles."""

    def to_json(self, *, with_password: bool = False) -> str:
        """Write it as JSON, the password in the DSN hidden unless asked for."""
        content = asdict(self)
        if not with_password:
            content["dsn"] = shown(self.dsn)
        return json.dumps(content, indent=2)

    def save(self, state: Path) -> None:
        """Write `stack.json`, for the owner only, as it holds the password."""
        write_private(state / "stack.json", self.to_json(with_password=True) + "\n")


def running(state: Path) -> Description | None:
    """Return the stack that is up in a state folder, None when there is none (the rest of a crash does not count)."""
    try:
        content = json.loads((state / "stack.json").read_text())
    except FileNotFoundError:
        return None
    servers = tuple(Server(**server) for server in content.pop("servers"))
    description = Description(servers=servers, **content)
    return description if process_started(description.pid) == description.started else None


def process_started(pid: int) -> float | None:
    """Return when a process started, to tell it from a later one with the same id; None when it has ended.

    On Linux in clock ticks since the machine started, which setting the clock does not change.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists() or not psutil.pid_exists(pid):
            return None
        return psutil.Process(pid).create_time()
    return None if fields[0] in "ZX" else float(fields[19])
