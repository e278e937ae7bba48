"""The commit log: files with the messages of a pipeline's reader, in order.

    folder/
      log.json                        the list of segments, and the version of the format
      lock                            locked by the process that writes the log
      00000000000000000000.0.log      a segment: only entries; its name is its first offset and its generation
      00000000000000000000.0.index    the segment's index: offsets and checksum of each block

Promises
- When `append` has returned, its entries are readable and survive a kill of the process. Synced entries survive a crash
  of the machine.
- Incomplete entries are never returned. Opening the log truncates them, and `repaired` lists what was cut off.
- Damaged entries are never returned. A reader gets an error with file and byte. An operator may `skip` the entries.
- Compaction changes no offset and retains the newest entry of each key. It is atomic, and does not block readers.
- After an error, the log is as before, except for complete entries that were added at its end.

The log is synced every `sync_seconds` (1 by default) during appends, when a segment or the log is closed, and on
request. A caller that stores an offset elsewhere must sync the log first. Without the sync, the entry may be lost in a
crash, and the stored offset would later refer to another entry.

The log stores bytes. The modules `entry` and `index` define the formats.
"""

from harvest_lib.pipeline.commit_log.compaction import Compacted
from harvest_lib.pipeline.commit_log.entry import LogEntry, mode_byte, pack, parts_of, unpack
from harvest_lib.pipeline.commit_log.log import CommitLog
from harvest_lib.pipeline.commit_log.opening import Cut
from harvest_lib.pipeline.commit_log.reading import LogView
from harvest_lib.pipeline.commit_log.skipping import Skipped

__all__ = ["CommitLog", "Compacted", "Cut", "LogEntry", "LogView", "Skipped", "mode_byte", "pack", "parts_of", "unpack"]
