"""Options of the adaptor `file`, for its reader and its writer."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from harvest_lib.pipeline.adaptors import Options
from harvest_lib.pipeline.adaptors.envelope import Content

Format = Literal["json_lines", "parquet"]


class FileReading(Options):
    """The options of reading files. A first run starts at the beginning, a later run where the previous run stopped."""

    path: Path
    """JSON lines: the file. Parquet: a folder that has a folder per namespace, or the files themselves, or both."""

    format: Format = "json_lines"
    """Default: json_lines."""

    content: Content = "envelope"
    """JSON lines: each line is a message (`envelope`) or a row (`data`). Default: envelope."""

    namespace: str | None = Field(default=None, min_length=1)
    """The namespace of rows. Default: the file's name without its extension; for Parquet files in a folder per
    namespace, the namespace of that folder."""

    follow: bool = False
    """True to wait for more data at the end of the file or folder. Default: false."""

    batch_rows: int = Field(default=1_000, ge=1, le=100_000)
    """Messages in a batch, at most. Default: 1,000."""


class FileWriting(Options):
    """The options of writing files. JSON lines are appended to a file; Parquet adds a file per batch and namespace."""

    path: str = Field(min_length=1)
    """JSON lines: the file; if the path contains `{namespace}`, a file per namespace. Parquet: a folder, in which each
    namespace has a folder with a file per batch. Missing folders are created."""

    format: Format = "json_lines"
    """Default: json_lines."""

    content: Content = "envelope"
    """JSON lines: `envelope` writes whole messages, `data` only their data (inserts and updates only). Default:
    envelope."""

    @model_validator(mode="after")
    def _fits(self) -> "FileWriting":
        if self.format == "parquet" and self.content != "envelope":
            raise ValueError("`content` is for JSON lines: Parquet always has the op of a row in a column")
        return self
