"""Text drawing of a pipeline's data flow, and a description of its settings."""

from collections.abc import Iterator

from harvest_lib.pipeline.declaration import Declaration, DeclaredWriter
from harvest_lib.pipeline.namespace import EVERYTHING

_POLICIES = {
    ("stop", "stop"): "a failed bulk or transform stops the pipeline",
    ("stop_writer", "stop"): "a failed bulk or transform stops this writer alone",
    ("stop", "park"): "a failed bulk stops the pipeline, a failed transform parks its message",
    ("stop_writer", "park"): "a failed bulk stops this writer alone, a failed transform parks its message",
}


def drawn(declaration: Declaration) -> str:
    """Return the drawing of a pipeline, with a line per writer:

    postgres ─► commit log ─┬─► /^public\\./ ─► omit tailnum ─► file (lake)
                            └─► everything ─► kafka (events)
    """
    head = f"{declaration.reader.adaptor} ─► commit log ─"
    lines = []
    for number, writer in enumerate(declaration.writers):
        last = number == len(declaration.writers) - 1
        branch = "─" if len(declaration.writers) == 1 else "┬" if number == 0 else "└" if last else "├"
        before = head if number == 0 else " " * len(head)
        lines.append(f"{before}{branch}─► {' ─► '.join(_stations(writer))}")
    return "\n".join(lines)


def explained(declaration: Declaration) -> Iterator[str]:
    """Yield lines that describe the settings which are not in the drawing."""
    settings = declaration.settings
    log = settings.commit_log
    yield f"folder: {declaration.folder}"
    yield (
        f"commit log: segments of {log.segment_bytes:,} bytes, on the disk after {log.sync_seconds:g} s, "
        + (f"compacted every {log.compact_seconds:g} s" if log.compact_seconds else "never compacted by itself")
    )
    yield (
        f"after a kill a writer may get again the messages of its last {settings.flush_seconds:g} s, and gets "
        f"up to {declaration.max_behind_messages:,} messages one at a time"
    )
    for writer in declaration.writers:
        policy = _POLICIES[writer.settings.on_error, writer.settings.on_transform_error]
        yield f"{writer.name}: up to {writer.settings.batch_messages:,} messages a write; {policy}"


def _stations(writer: DeclaredWriter) -> Iterator[str]:
    expression = writer.settings.namespace
    yield "everything" if expression == EVERYTHING else f"/{expression}/"
    for name, _ in writer.transforms:
        yield name
    yield f"{writer.adaptor} ({writer.name})"
