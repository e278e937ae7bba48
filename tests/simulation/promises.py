"""Promises that a run must keep, checked as it goes and at its end. `broken` lists the broken ones, the first first."""

from collections import Counter, defaultdict

from harvest_lib.leadership import TermEnd
from tests.simulation.plan import EXACTLY_ONCE


class Promises:
    """The invariants of the product, on what really is in the database and in the log."""

    def __init__(self, world):
        self._world = world
        self.broken = []
        self._ranks = {}  # leader id -> of which term
        self._leads = {}  # shard -> the term that raised the epoch last
        self._unfenced = set()  # terms that nothing in Kafka fences
        self._frozen = set()  # terms whose process was frozen
        self._terms = {}
        self._live = {}  # process and shard -> the term
        self._produced_at = {}  # process and shard -> when it has handed over a record last
        self._acknowledged = defaultdict(set)  # process -> events
        self._shards = {}  # transactional id -> whose it is
        self._numbers = {}  # shard and generation -> the number of the last checkpoint
        self.rewinds = Counter()  # by shard

    def say(self, text):
        self.broken.append(f"{text} (at {self._world.scheduler.now - 1_000:.3f} s)")

    # -- as it goes

    def granted(self, term):
        self._terms.setdefault(term, len(self._terms))

    def begins(self, owner, term, leader_id, delivery):
        rank = self._ranks[str(leader_id)] = self._terms.setdefault(term, len(self._terms))
        self._live[owner] = term
        if delivery not in EXACTLY_ONCE:
            self._unfenced.add(rank)

    def froze(self, process):
        self._frozen.update(self._terms[term] for (each, _), term in self._live.items() if each is process)

    def produced(self, owner, outbox_id):
        term = self._live[owner]
        if term.ended is TermEnd.FENCED or self._world.scheduler.now >= term._lease_until + 0.001:
            self.say(f"record {outbox_id} was handed to Kafka by {owner[0].name} after its term")
        self._produced_at[owner] = self._world.scheduler.now

    def acknowledged(self, process, event):
        self._acknowledged[process].add(event)

    def purged(self, process, events):
        plan, readable = self._world.plan, self._world.broker.readable
        if plan.source != "mark":
            return
        if plan.delivery == "transactional":
            for event in set(events) - readable:
                self.say(f"{self._name(event)} was purged by {process.name}, and no reader can see it")
            return
        if plan.delivery == "sequenced":
            for event in set(events) - {each.value for each in self._world.broker.log}:
                self.say(f"{self._name(event)} was purged by {process.name}, and is not in Kafka")
            return
        # In batches a successor purges by the checkpoint of the leader before it.
        heard = self._acknowledged.values() if plan.has_epochs else [self._acknowledged[process]]
        for event in set(events).difference(*heard):
            self.say(f"{self._name(event)} was purged by {process.name}, to which nobody had acknowledged it")

    def leads(self, leader_id, shard):
        """Hear that a leader has raised the epoch. By the lock no term does that after a later one has."""
        rank = self._ranks[leader_id]
        if self._world.plan.by_lock and rank < self._leads.get(shard, rank):
            self.say("a term that was granted before has deposed the one that leads")
        self._leads[shard] = rank

    def takes(self, owner, transactional_id):
        """Hear that a producer is about to fence the previous holder of a transactional id."""
        process, shard = owner
        if self._shards.setdefault(transactional_id, shard) != shard:
            self.say(f"{process.name} fences for shard {shard} who sends of shard {self._shards[transactional_id]}")

    def stored(self, leader_id, shard, generation, number):
        """Hear that a checkpoint is in the database."""
        if self._ranks[leader_id] != self._leads[shard]:
            self.say(f"checkpoint {number} was stored by a leader that was fenced")
        if generation != 1 + self.rewinds[shard]:
            self.say(f"checkpoint {number} was stored of generation {generation}, and that was over")
        self._saved(shard, generation, number)

    def stored_late(self, owner, asked_at, number):
        """Hear that it is, and that nobody waited for the answer any more. Where acknowledgements are stored with it,
        they would be of records that were sent again since."""
        if self._world.plan.delivery == "sequenced" and self._produced_at.get(owner, 0.0) > asked_at:
            self.say(f"checkpoint {number} was stored late, when its leader had gone on from the one before")

    def _saved(self, shard, generation, number):
        before = self._numbers.get((shard, generation), 0)
        if number < before:
            self.say(f"the checkpoint of generation {generation} went back from {before} to {number}")
        self._numbers[shard, generation] = max(before, number)

    def committed_checkpoint(self, shard, record):
        self._saved(shard, -record["generation"], record["number"])

    def released(self, harvester):
        """After an orderly end, with nothing going wrong, nothing is left marked."""
        if self._world.plan.source != "mark" or self._world.plan.has_epochs:
            return
        loop = harvester.loop
        if str(loop.leader_id) in self._world.faults.hit_leaders:
            return  # rows it did not hear of stay marked for the next leader
        own_id = loop._ports.source._source._leader_id
        marked = [each for each, record in self._world.database.rows.items() if record.leader_id == own_id]
        if marked:
            self.say(f"{harvester.name} ended in order and left {marked} marked")

    # -- at the end

    @property
    def missing(self):
        """Return the committed events that readers do not see."""
        return set(self._world.writers.committed) - {each.value for each in self._world.read()}

    def check(self):
        """Check what is in the log."""
        seen, delivery = self._world.read(), self._world.plan.delivery
        for event in sorted(self.missing, key=self._name):
            self.say(f"{self._name(event)} is lost")
        for entry in seen:
            if entry.value not in self._world.writers.committed:
                self.say(f"{self._name(entry.value)} was never committed, and is in Kafka")
        self._check_first(seen)
        if delivery == "mixed":
            self._check_late(self._world.broker.log)
        elif delivery not in EXACTLY_ONCE:
            self._check_steps(self._world.broker.log)
        else:
            for event, times in Counter(each.value for each in seen).items():
                if times > 1 + self.rewinds[self._shard(event)]:
                    self.say(f"{self._name(event)} is there {times} times")
        if self._world.reader.out_of_order or self._world.reader.malformed:
            self.say("a producer has used an id twice, or one that is none")

    def _check_first(self, seen):
        """First occurrences of a key are in the order of commits, without a gap."""
        found, last = set(), defaultdict(int)
        for entry in seen:
            key, seq = self._world.writers.keys[entry.value]
            if entry.value in found or entry.value not in self._world.writers.committed:
                continue
            found.add(entry.value)
            if seq != last[key] + 1:
                self.say(f"{self._name(entry.value)} came first after {key}{last[key]}")
            last[key] = max(last[key], seq)

    def _check_late(self, log):
        """Records of a leader that nothing fences do not come after those of the next one, unless it froze."""
        newest = 0
        for entry in log:
            rank = self._ranks[entry.leader_id]
            if rank < newest and rank in self._unfenced - self._frozen:
                self.say(f"{self._name(entry.value)} of a leader that was not waited for came late")
            newest = max(newest, rank)

    def _check_steps(self, log):
        """Under the barrier a key never steps back; pipelined, where it may, it goes on from there without a gap.

        Where a leader has frozen, readers leave out terms older than the newest they know. Pipelined they go by leader
        ids instead: a record given up on the wire may come late."""
        if self._world.plan.mode == "mark-pipelined" and self._world.faults.have_delayed:
            return  # a purge that is late may leave a repeated run incomplete
        newest, last, barrier = defaultdict(int), defaultdict(int), self._world.plan.delivery == "barrier"
        ranks = self._ranks if barrier else {each: rank for rank, each in enumerate(self._ranks)}
        for entry in log:
            rank, shard = ranks[entry.leader_id], self._shard(entry.value)
            newest[shard] = max(newest[shard], rank)
            if rank < newest[shard] and (self._world.faults.have_frozen or not barrier):
                continue
            key, seq = self._world.writers.keys[entry.value]
            if barrier and seq < last[key] and not self.rewinds[shard]:
                self.say(f"{self._name(entry.value)} came after {key}{last[key]}")
            if not barrier and seq > last[key] + 1:
                self.say(f"{self._name(entry.value)} came after {key}{last[key]}, with a gap")
            last[key] = seq

    def _shard(self, event):
        key, _ = self._world.writers.keys[event]
        return self._world.shard_of(key)

    def _name(self, event):
        key, seq = self._world.writers.keys[event]
        return f"{key}{seq}"
