"""What a run must keep, looked at as it goes and at its end. What is broken is said in `broken`, the first first."""

from collections import Counter, defaultdict


class Promises:
    """The invariants of the product, on what really is in the database and in the log."""

    def __init__(self, world):
        self._world = world
        self.broken = []
        self._ranks = {}  # leader id -> of which term
        self._leads = None  # the term that raised the epoch last
        self._terms = {}
        self._live = {}  # process -> its term
        self._acknowledged = defaultdict(set)  # process -> events
        self._numbers = {}  # generation -> the number of the last checkpoint
        self.rewinds = 0

    def say(self, text):
        self.broken.append(f"{text} (at {self._world.scheduler.now - 1_000:.3f} s)")

    # -- as it goes

    def begins(self, process, term, leader_id):
        self._ranks[str(leader_id)] = self._terms.setdefault(term, len(self._terms))
        self._live[process] = term

    def produced(self, process, outbox_id):
        term = self._live[process]
        if term._end is not None or self._world.scheduler.now >= term._lease_until + 0.001:
            self.say(f"record {outbox_id} was handed to Kafka by {process.name} after its term")

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
        for event in set(events) - self._acknowledged[process]:
            self.say(f"{self._name(event)} was purged by {process.name}, to which nobody had acknowledged it")

    def leads(self, leader_id):
        """Hear that a leader has raised the epoch."""
        self._leads = self._ranks[leader_id]

    def stored(self, leader_id, generation, number):
        """Hear that a checkpoint is in the database."""
        if self._ranks[leader_id] != self._leads:
            self.say(f"checkpoint {number} was stored by a leader that was fenced")
        if generation != 1 + self.rewinds:
            self.say(f"checkpoint {number} was stored of generation {generation}, and that was over")
        self._saved(generation, number)

    def _saved(self, generation, number):
        before = self._numbers.get(generation, 0)
        if number < before:
            self.say(f"the checkpoint of generation {generation} went back from {before} to {number}")
        self._numbers[generation] = max(before, number)

    def committed_checkpoint(self, record):
        self._saved(-record["generation"], record["number"])

    def released(self, harvester):
        """After an orderly end, with nothing going wrong, nothing is left marked."""
        rows, leader_id = self._world.database.rows, harvester.loop.leader_id
        if str(leader_id) in self._world.faults.hit_leaders:
            return  # what it did not hear of stays marked for whoever comes next
        marked = [each for each, record in rows.items() if record.leader_id == leader_id]
        if marked:
            self.say(f"{harvester.process.name} ended in order and left {marked} marked")

    # -- at the end

    @property
    def missing(self):
        """Return the committed events that readers do not see."""
        return set(self._world.writers.committed) - {each.value for each in self._world.broker.committed()}

    def check(self):
        """Check what is in the log."""
        seen = self._world.broker.committed()
        for event in sorted(self.missing, key=self._name):
            self.say(f"{self._name(event)} is lost")
        for entry in seen:
            if entry.value not in self._world.writers.committed:
                self.say(f"{self._name(entry.value)} was never committed, and is in Kafka")
        self._check_first(seen)
        if self._world.plan.delivery != "transactional":
            self._check_steps(self._world.broker.log)
        else:
            for event, times in Counter(each.value for each in seen).items():
                if times > 1 + self.rewinds:
                    self.say(f"{self._name(event)} is there {times} times")

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

    def _check_steps(self, log):
        """Under the barrier a key never steps back; pipelined, where it may, it goes on from there without a gap.

        Where a leader has frozen, readers leave out terms older than the newest they know. Pipelined they go by leader
        ids instead: what was given up on the wire may come late."""
        mode = self._world.plan.mode
        if mode == "mark-pipelined" and self._world.faults.have_delayed:
            return  # a purge that is late may leave a repeated run incomplete
        newest, last, barrier = 0, defaultdict(int), mode.endswith("barrier")
        ranks = self._ranks if barrier else {each: rank for rank, each in enumerate(self._ranks)}
        for entry in log:
            rank = ranks[entry.leader_id]
            newest = max(newest, rank)
            if rank < newest and (self._world.faults.have_frozen or not barrier):
                continue
            key, seq = self._world.writers.keys[entry.value]
            if barrier and seq < last[key] and not self.rewinds:
                self.say(f"{self._name(entry.value)} came after {key}{last[key]}")
            if not barrier and seq > last[key] + 1:
                self.say(f"{self._name(entry.value)} came after {key}{last[key]}, with a gap")
            last[key] = seq

    def _name(self, event):
        key, seq = self._world.writers.keys[event]
        return f"{key}{seq}"
