"""A history: operations on the system and their outcomes, as events in files of JSON lines."""

from harvest_lib.audit.history.events import Effect
from harvest_lib.audit.history.reader import read_history
from harvest_lib.audit.history.writer import HistoryWriter

__all__ = ["Effect", "HistoryWriter", "read_history"]
