"""Commands that next steps name: they act on the outbox that the check is about."""

import pytest

from dagster_harvest.commands import audit_command, harvest_command
from dagster_harvest.settings import OutboxSettings

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ({}, ""),
        ({"dsn_variable": "SHOP_DSN"}, 'HARVEST_DSN="$SHOP_DSN" '),
        ({"dsn": "{{ env.SHOP_DSN }}"}, 'HARVEST_DSN="$SHOP_DSN" '),
        ({"dsn": "service=shop user=a"}, "HARVEST_DSN='service=shop user=a' "),
        ({"table": "sales.outbox"}, "HARVEST_OUTBOX_TABLE=sales.outbox "),
    ],
)
def test_a_command_names_table_and_connection(given, before, monkeypatch):
    monkeypatch.delenv("HARVEST_CONFIG", raising=False)
    settings = OutboxSettings(name="shop", topics=["orders"], **given)
    assert harvest_command(settings, "park list") == f"`{before}harvest park list`"
    assert audit_command(settings) == f"`{before}harvest audit --topic orders`"
