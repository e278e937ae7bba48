"""The options of reader and writer of `file`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from harvest_lib.pipeline.adaptors import Options
from harvest_lib.pipeline.adaptors.envelope import Content

Format = Literal["json_lines", "parquet"]


class FileReading(Options):
    """Files that are read from their beginning, and on from where it stopped."""

    path: Path
    """JSON lines: the file. Parquet: the folder with a folder per namespace, or with files right in it."""

    format: Format = "json_lines"
    """Default: json_lines."""

    content: Content = "envelope"
    """JSON lines: each is a message (`envelope`) or a row (`data`). Default: envelope."""

    namespace: str | None = Field(default=None, min_length=1)
    """The namespace of rows. Default: the file's name without its ending; for Parquet the folder's name, if any."""

    follow: bool = False
    """True to wait for more at the end. Default: false."""

    batch_rows: int = Field(default=1_000, ge=1, le=100_000)
    """Messages in a batch, at most. Default: 1,000."""


class FileWriting(Options):
    """Files that are appended to, or added."""

    path: str = Field(min_length=1)
    """JSON lines: the file; with `{namespace}` in it, a file per namespace. Parquet: the folder. It has a folder per
    namespace, in which each batch is a file. Missing folders are made."""

    format: Format = "json_lines"
    """Default: json_lines."""

    content: Content = "envelope"
    """JSON lines: whole messages, or data alone (inserts and updates only). Default: envelope."""

    @model_validator(mode="after")
    def _fits(self) -> "FileWriting":
        if self.format == "parquet" and self.content != "envelope":
            raise ValueError("`content` is for JSON lines: Parquet always has the op of a row in a column")
        return self
