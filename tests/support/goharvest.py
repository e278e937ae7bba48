"""goharvest itself, as a member of a pool: its program `reaper`, built by the Go client from the published module.

Nothing of it is kept here; the program stays in the state folder. v0.3.1 is its last version, so the one a pool in
production has most likely. From v0.1.0, whose documentation ours follows, it differs where it matters in one thing: a
failed mark takes a new leader id.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.pool import Member, Pool

from harvest_lib.local_stack.state import locked, make_folder

VERSION = "v0.3.1"
_MODULE = "github.com/obsidiandynamics/goharvest"
_BUILD_SECONDS = 540

# A module of our own needs this one version; `go install` would ask for the list of all versions as well.
_GO_MOD = f"""\
module reaper

go 1.21

require {_MODULE} {VERSION}
"""

REAPER = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: {servers}
    client.id: {name}
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 5000
  leaderTopic: {group}.neli
  leaderGroupID: {group}
  dataSource: {dsn}
  outboxTable: outbox
  name: {name}
  limits:
    heartbeatTimeout: 1500ms
    ioErrorBackoff: 100ms
    maxInFlightRecords: 1000
    markQueryRecords: 200
logging:
  level: Info
"""

_SAID = re.compile(r'^time="([^"]+)" level=\w+ msg="(.*?)" lib=goharvest ')
_EVENTS = {
    "Starting background poller": "harvester_started",
    "Elected as leader, ID: ": "leader_acquired",
    "Refreshed leader ID: ": "leader_refreshed",
    "Lost leader status": "leader_revoked",
    "Leader fenced": "leader_fenced",
}


class Unavailable(Exception):
    """goharvest cannot be built here; the message says why."""


def reaper(state: Path) -> Path:
    """Return the program, built at the first time. Raises Unavailable."""
    folder = make_folder(state / "goharvest" / VERSION)
    program = folder / "reaper"
    with locked(folder / "lock"):
        if not program.exists():
            _build(folder, program, cache=state / "cache")
    return program


def _build(folder: Path, program: Path, *, cache: Path) -> None:
    if (go := shutil.which("go")) is None:
        raise Unavailable("Go is not on the PATH")
    (folder / "go.mod").write_text(_GO_MOD)
    made = folder / "reaper.new"
    command = [go, "build", "-mod=mod", "-modcacherw", "-o", made, f"{_MODULE}/cmd/reaper"]
    places = {"GOPATH": str(cache / "go"), "GOCACHE": str(cache / "go-build"), "CGO_ENABLED": "1"}
    try:
        subprocess.run(
            command, cwd=folder, env=os.environ | places, check=True, capture_output=True, timeout=_BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        said = " | ".join(error.stderr.decode(errors="replace").strip().splitlines()[-2:])
        raise Unavailable(f"goharvest {VERSION} cannot be built: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"goharvest {VERSION} was not built within {_BUILD_SECONDS} s") from error
    made.replace(program)


class Goharvest(Member):
    """One goharvest process. What it logs is told under our events' names; its times are whole seconds."""

    def __init__(self, program, config, log):
        super().__init__(config, log, command=[program], options=())

    def events(self):
        return list(filter(None, map(_event, self.lines())))


class MixedPool(Pool):
    """Members of both kinds. Of all that live, the one with the lowest rank leads: assignment goes by client id."""

    def __init__(self, folder, *, program, dsn, servers, group):
        super().__init__(folder, dsn=dsn, servers=servers, group=group)
        self._program = program
        self._reaper = REAPER.format(servers=servers, group=group, dsn=dsn, name="{name}")

    def add_goharvest(self, rank):
        log, config = self._files(rank)
        config.write_text(self._reaper.format(name=f"{rank:04}-goharvest"))
        return self._join(Goharvest(self._program, config, log), rank)

    def add_ours(self, rank):
        log, config = self._files(rank)
        config.write_text(self._config.read_text() + f"  name: {rank:04}-ours\n")
        return self._join(Member(config, log), rank)

    def _files(self, rank):
        name = f"{len(self.members):03}-rank-{rank}"
        return self._folder / f"{name}.log", self._folder / f"{name}.yaml"

    def _join(self, member, rank):
        member.rank = rank
        self.members.append(member)
        return member


def _event(line):
    said = _SAID.match(line)
    if said is None:
        return None
    timestamp, message = said.groups()
    for beginning, event in _EVENTS.items():
        if message.startswith(beginning):
            return {"event": event, "timestamp": timestamp, "leader_id": message.removeprefix(beginning)}
    return None
