"""`stdout`: messages as lines of JSON on the standard output, for a person or for another program."""

import sys
from collections.abc import Sequence

from pydantic import Field

from harvest_lib.errors import AdaptorError
from harvest_lib.pipeline.adaptors import Adaptor, Options, Side, Writer
from harvest_lib.pipeline.adaptors.envelope import Content, encode_all
from harvest_lib.pipeline.logged_messages import without_noops
from harvest_lib.pipeline.message import PipelineMessage


class StdoutWriting(Options):
    """Options of the printed lines."""

    content: Content = Field(default="envelope")
    """`envelope`: whole messages; `data`: their data alone, without deletes and commands. Default: envelope."""


class StdoutWriter(Writer):
    """`Writer` to the standard output. It does not learn whether the program that reads the output succeeds."""

    def __init__(self, options: StdoutWriting) -> None:
        self._content = options.content

    def write(self, messages: Sequence[PipelineMessage]) -> None:
        lines = b"".join([line + b"\n" for line in encode_all(without_noops(messages), self._content)])
        try:
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        except (OSError, ValueError) as error:
            raise AdaptorError(
                "the standard output does not take messages",
                evidence=f"{type(error).__name__}: {error}",
                next_step="have the program that reads it run as long as the pipeline",
            ) from error


ADAPTOR = Adaptor(summary="lines of JSON on the standard output", writes=Side(options=StdoutWriting, make=StdoutWriter))
