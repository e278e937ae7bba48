"""A watch over the members of a pool: no shard is ever led twice at once."""

import threading
from collections import Counter, defaultdict

from support.waiting import eventually

from harvest_lib.clock import boot_seconds


class Watch:
    """Look at the terms of all members all the time; fails at the end if a shard had two that were live at once."""

    def __init__(self, *members):
        self.members = list(members)
        self.led = defaultdict(list)
        """The ids that each member has led under, in order."""
        self.began, self.over = {}, {}
        """By id: when a term was first seen to be live, and first seen to be over."""
        self._at_once = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(60)
        self._look()
        assert self._at_once == [], "never two"

    def in_turn(self, first, second):
        """Return True if the second term was seen to begin, and not before the first was over."""
        began = eventually(lambda: self.began.get(second.leader_id), "it was seen")
        return self.over[first.leader_id] <= began

    def _keep_looking(self):
        while not self._done.wait(0.005):
            self._look()

    def _look(self):
        terms = [(member, term) for member in self.members for term in member.terms(0)]
        # Together, and after all were found: a term that ended meanwhile is no rival of one that began since.
        live = {term.leader_id: (member, term) for member, term in terms if term.is_live()}
        now = boot_seconds()
        for leader_id in live.keys() - self.began.keys():
            self.began[leader_id] = now
            self.led[live[leader_id][0]].append(leader_id)
        for leader_id in self.began.keys() - live.keys():
            self.over.setdefault(leader_id, now)
        shards = Counter(term.shard for _, term in live.values())
        if any(leaders > 1 for leaders in shards.values()):
            self._at_once.append(list(live))
