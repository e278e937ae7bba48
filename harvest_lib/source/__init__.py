"""Where records come from."""

from harvest_lib.source.mark import MarkSource
from harvest_lib.source.protocol import Batch, Source
from harvest_lib.source.thread import SourceThread

__all__ = ["Batch", "MarkSource", "Source", "SourceThread"]
