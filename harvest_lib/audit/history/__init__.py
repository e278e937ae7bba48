"""A history: what was done to the system and what it answered, as events in files of JSON lines."""

from harvest_lib.audit.history.events import Effect
from harvest_lib.audit.history.reader import read_history
from harvest_lib.audit.history.writer import HistoryWriter

__all__ = ["Effect", "HistoryWriter", "read_history"]
