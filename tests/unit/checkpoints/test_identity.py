"""The comparison of a checkpoint's outbox with the one that is now."""

from types import SimpleNamespace

import pytest

from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.outbox.identity import OutboxIdentity, check_identity, difference

pytestmark = pytest.mark.quick

NOW = OutboxIdentity("7421", 5, 16400)
SEGMENT = 16300
"""The table that was migrated: it is a segment of the one that is now."""
ERRORS = {"server": ServerRegressed, "table": CheckpointError}


class Connection:
    """Knows of the one segment."""

    def execute(self, _statement, values):
        return SimpleNamespace(fetchone=lambda: (values == (SEGMENT, NOW.table),))


@pytest.mark.parametrize(
    ("saved", "different"),
    [
        ({"identity": "7421/5/16400"}, ""),
        ({"identity": f"7421/5/{SEGMENT}"}, ""),
        ({"identity": "7421/5/16500"}, "table"),
        ({"identity": f"7421/6/{SEGMENT}"}, "table"),
        ({"identity": "7422/5/16400"}, "server"),
        ({"identity": "what else"}, "table"),
        ({"number": 7}, "table"),
        ({"identity": "7421/5/16400", "position": {"server": {"system": "7422"}}}, ""),
    ],
)
def test_a_checkpoint_is_of_this_outbox_or_differs_in_server_or_table(saved, different):
    assert difference(Connection(), saved, NOW) == different
    if not different:
        check_identity(Connection(), saved, NOW, "default")
        return
    with pytest.raises(ERRORS[different]) as error:
        check_identity(Connection(), saved, NOW, "default")
    assert str(NOW) in error.value.evidence
