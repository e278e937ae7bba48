"""The operator that maintains the segments of a native outbox."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.archive import archive_segments
from harvest_lib.outbox.native_table import DEFAULT_AHEAD
from harvest_lib.outbox.segments import drop_passed, ensure_segments

if TYPE_CHECKING:
    from airflow.sdk import Context


class SegmentsOperator(OutboxOperator):
    """Create the segments of a native outbox in advance, archive closed segments, and drop what was read.

    The three steps run in this order; each can be left out, and each can be repeated. Writers wait for milliseconds at
    most. The connection's role owns the outbox. Returns `created` (a number), `archived` and `dropped` (names), and
    `kept`, the reason why the next segment was not dropped. Raises AirflowFailException for what another try would find
    again, else HarvestError.
    """

    template_fields: Sequence[str] = ("conn_id", "archive")

    def __init__(
        self,
        *,
        ahead: int = DEFAULT_AHEAD,
        archive: str = "",
        drop: bool = False,
        keep: timedelta | None = None,
        **arguments: Any,
    ) -> None:
        """Make the task. `ahead` is the number of segments with an end, from the current segment on; 0 creates none.
        `archive` is a folder or a URL of fsspec; it needs the extra `archive`. `drop` drops the segments that every
        subscription has passed and that were closed for `keep`, by default the connection's `keepSegments`."""
        super().__init__(**arguments)
        self.ahead = ahead
        self.archive = archive
        self.drop = drop
        self.keep = keep

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """Do the steps, and return what was done."""
        created, archived, dropped, because = 0, [], [], ""
        with self._open() as (config, table, connection):
            table.check_native(connection)
            if self.ahead:
                created = ensure_segments(connection, table, ahead=self.ahead).made
            if self.archive:
                for each in archive_segments(connection, table, self.archive, None):
                    self.log.info("archived %s: %d records", each.segment, each.records)
                    archived.append(each.segment)
            if self.drop:
                keep = config.keep_segments_seconds if self.keep is None else self.keep.total_seconds()
                done = drop_passed(connection, table, keep_seconds=keep)
                dropped, because = list(done.dropped), done.because
        self.log.info("created %d segments; dropped: %s", created, ", ".join(dropped) or "none")
        if because:
            self.log.info("the next one is kept: %s", because)
        return {"created": created, "archived": archived, "dropped": dropped, "kept": because}
