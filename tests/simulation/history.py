"""The history of a run: one event after the other, as the audit of histories reads them."""

import json

_WALL_SECONDS = 1_800_000_000.0


class History:
    """Events in the order of their time."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self.events = []

    def add(self, kind, how, process, **fields):
        now = round(self._scheduler.now, 6)
        event = {"kind": kind, "type": how, "process": process, "time": now, "wall": round(_WALL_SECONDS + now, 6)}
        self.events.append(event | fields)

    def fault(self, what, step="begin"):
        self.add("fault", "info", "world", fault=what, step=step)

    def write(self, path):
        """Write the history as lines of JSON."""
        path.write_text("".join(json.dumps(each) + "\n" for each in self.events))
