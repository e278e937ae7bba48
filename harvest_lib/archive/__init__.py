"""Archives of closed segments: Parquet files by day and topic, and a manifest for each segment."""

from harvest_lib.archive.archiving import (
    Archived,
    archive_segments,
    closed_segments,
    unarchived_segments,
    verify_archive,
)
from harvest_lib.archive.files import ArchivedFile, ArchiveFiles, Manifest

__all__ = [
    "ArchiveFiles",
    "Archived",
    "ArchivedFile",
    "Manifest",
    "archive_segments",
    "closed_segments",
    "unarchived_segments",
    "verify_archive",
]
