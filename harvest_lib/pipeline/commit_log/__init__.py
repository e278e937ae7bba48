"""The commit log: the messages of a pipeline's reader, in order, on the disk.

    folder/
      log.json                        the segments, and the version of the format
      lock                            of the process that writes it
      00000000000000000000.0.log      a segment: entries and nothing else; named by the offset it began with
      00000000000000000000.0.index    offsets and checksum of each block of it

Promises
- Entries are readable and outlive the process once `append` has returned. Synced entries outlive the machine.
- Entries not written whole are cut off when the log is opened, and `repaired` has the cuts; they are never read.
- Damaged entries are never read either: a reader gets an error with file and byte; an operator may `skip` them.
- Compaction keeps each offset and the newest entry of each key, takes effect at one moment, and blocks no reader.
- An error leaves the log as it was, but for whole entries at its end.

When it is synced: every `sync_seconds` (1 by default) while something is appended, when a segment is closed, when the
log is, and on request. A caller that keeps an offset elsewhere syncs first: an offset that outlives its entry would
stand for another later.

It handles bytes only. For the format of entries see `entry`, for the index `index`.
"""

from harvest_lib.pipeline.commit_log.compaction import Compacted
from harvest_lib.pipeline.commit_log.entry import LogEntry, mode_byte, pack, parts_of, unpack
from harvest_lib.pipeline.commit_log.log import CommitLog
from harvest_lib.pipeline.commit_log.opening import Cut
from harvest_lib.pipeline.commit_log.reading import LogView
from harvest_lib.pipeline.commit_log.skipping import Skipped

__all__ = ["CommitLog", "Compacted", "Cut", "LogEntry", "LogView", "Skipped", "mode_byte", "pack", "parts_of", "unpack"]
