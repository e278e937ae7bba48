"""goharvest itself, as a member of a pool; `goharvest_build` says which."""

import re

from support.pool import Member, Pool

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


class Goharvest(Member):
    """One goharvest process. Its log is read under our events' names; its times are whole seconds."""

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
