"""Where records come from."""

from harvest_lib.source.mark import MarkSource
from harvest_lib.source.protocol import Source

__all__ = ["MarkSource", "Source"]
