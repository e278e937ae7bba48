"""A history: operations on the system and their results, as events in files of JSON lines."""

from infra.chaos.history.events import Effect
from infra.chaos.history.reader import read_history
from infra.chaos.history.writer import HistoryWriter

__all__ = ["Effect", "HistoryWriter", "read_history"]
