"""Operators' actions on a pipeline: they show its state and messages, or change a pipeline that does not run.

Functions that only read take no lock, so that they work also while the pipeline runs. All other functions open the
folder as a run does, and fail if another process has the folder open.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline.commit_log import CommitLog, Compacted, Skipped
from harvest_lib.pipeline.declaration import Declaration, DeclaredWriter
from harvest_lib.pipeline.encoded_messages import message_of
from harvest_lib.pipeline.folder import (
    commit_folder,
    offsets_folder,
    open_folder,
    parked_messages,
    undeclared_positions,
)
from harvest_lib.pipeline.message import PipelineMessage
from harvest_lib.pipeline.offset_log import flushed_position
from harvest_lib.pipeline.writer_progress import WriterProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatus:
    """State of a writer. `position`: the first offset that is not acknowledged on the disk. `behind`: the distance from
    the position to the log's end. `parked`: the number of parked messages."""

    name: str
    adaptor: str
    position: int
    behind: int
    parked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """State of a pipeline according to its files. `begin`: the first offset in the log. `end`: the offset of the next
    message."""

    begin: int
    end: int
    writers: Sequence[WriterStatus]
    undeclared: Mapping[str, int]
    """Positions of writers that have offsets in the folder but are not declared. Compaction does not go beyond these
    positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """Result of `step` for a writer. `sent`: the message that was sent, None if there was no message to send."""

    writer: str
    sent: PipelineMessage | None
    position: int
    behind: int


def pipeline_status(declaration: Declaration) -> PipelineStatus:
    """Return the position of each writer, and the first and the next offset of the log."""
    folder = declaration.folder
    if not CommitLog.is_there(commit_folder(folder)):
        begin = end = 0
    else:
        log = CommitLog.look(commit_folder(folder))
        begin, end = log.begin, log.end
    writers = [_writer_status(declaration, each, end) for each in declaration.writers]
    return PipelineStatus(begin=begin, end=end, writers=writers, undeclared=undeclared_positions(declaration))


def messages(declaration: Declaration, first: int, last: int) -> Iterator[PipelineMessage]:
    """Yield the messages from offset `first` to `last` (inclusive), as the reader produced them.

    Messages that compaction removed are left out. Raises PipelineError if the log ends before `first`.
    """
    _require_log(declaration)
    log = CommitLog.look(commit_folder(declaration.folder))
    if first >= log.end:
        raise PipelineError(
            f"the log has no offset {first} yet",
            evidence=f"the next message gets offset {log.end}",
            next_step=f"give offsets from {log.begin} on, below {log.end}" if log.begin < log.end else "run it first",
        )
    for entry in log.read(first, last + 1):
        yield message_of(entry)


def step(declaration: Declaration, writer: str | None = None) -> Iterator[Stepped]:
    """Send the next message to each writer, or only to the named writer, and yield the results.

    A message is sent when the caller requests the writer's result. Raises PipelineError if a writer refuses a message.
    """
    _require_log(declaration)
    with open_folder(declaration) as logs:
        for each in _chosen(declaration, writer):
            writing, end = logs.writer_progress(each), logs.log.end
            try:
                with closing(each.open()) as opened_writer:
                    sent = next((each for each in writing.resume(opened_writer, end) if each is not None), None)
            finally:
                writing.flush()
            behind = max(0, end - writing.position)
            yield Stepped(writer=each.name, sent=sent, position=writing.position, behind=behind)


def acknowledge(declaration: Declaration, offset: int, writer: str | None = None) -> WriterProgress:
    """Acknowledge a message without sending it. Raises PipelineError if it is not the writer's next message."""
    _require_log(declaration)
    with open_folder(declaration) as logs:
        chosen = _chosen(declaration, writer)
        if len(chosen) > 1:
            raise PipelineError(
                "there are several writers, and each has offsets of its own",
                evidence=", ".join(each.name for each in chosen),
                next_step="name the writer with `--writer`",
            )
        writing = logs.writer_progress(chosen[0])
        writing.skip(offset)
    return writing  # closing the logs flushed its offsets


def compact(declaration: Declaration) -> Compacted:
    """Compact the offset log of each writer, and the commit log's closed segments up to the lowest position of all
    writers."""
    _require_log(declaration)
    with open_folder(declaration) as logs:
        for offsets in logs.offsets.values():
            offsets.compact()
        positions = [logs.writer_progress(each).position for each in declaration.writers]
        return logs.log.compact(min([*positions, *undeclared_positions(declaration).values()]))


def skip_damage(declaration: Declaration, offset: int) -> Skipped:
    """Skip the damaged messages at an offset of the log permanently. No writer gets messages that are unreadable."""
    _require_log(declaration)
    with open_folder(declaration) as logs:
        return logs.log.skip(offset)


def _writer_status(declaration: Declaration, writer: DeclaredWriter, end: int) -> WriterStatus:
    position = flushed_position(offsets_folder(declaration.folder, writer.name))
    return WriterStatus(
        name=writer.name,
        adaptor=writer.adaptor,
        position=position,
        behind=max(0, end - position),
        parked=sum(1 for _ in parked_messages(declaration.folder, writer.name)),
    )


def _chosen(declaration: Declaration, writer: str | None) -> Sequence[DeclaredWriter]:
    chosen = [each for each in declaration.writers if writer in {None, each.name}]
    if not chosen:
        raise PipelineError(
            f"the pipeline has no writer `{writer}`",
            evidence=f"it has {', '.join(each.name for each in declaration.writers)}",
            next_step="choose one of them",
        )
    return chosen


def _require_log(declaration: Declaration) -> None:
    if not CommitLog.is_there(commit_folder(declaration.folder)):
        raise PipelineError(
            "the pipeline has no commit log yet",
            evidence=f"{declaration.folder} has none",
            next_step="run it first, or correct `folder`",
        )
