"""Changes that a project makes to the assets of an outbox. Keys must not change."""

from collections.abc import Callable
from typing import Any, Literal, cast

import dagster as dg

from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import ConfigError

Role = Literal["business", "outbox", "topic", "audit", "verified", "archive", "replay"]
"""The role of an asset in its outbox."""

SpecChange = Callable[[dg.AssetSpec, Role], dg.AssetSpec]
"""Returns the spec that takes the place of a spec."""


def role_of(key: dg.AssetKey, settings: OutboxSettings) -> Role:
    """Return the role of an asset of the outbox."""
    roles: dict[dg.AssetKey | None, Role] = {
        **dict.fromkeys(settings.topic_keys, "topic"),
        settings.business_key: "business",
        settings.outbox_key: "outbox",
        settings.verified_key: "verified",
        settings.archive_key: "archive",
        settings.replay_key: "replay",
    }
    return roles.get(key, "audit")


def customized(defs: dg.Definitions, settings: OutboxSettings, change: SpecChange) -> dg.Definitions:
    """Return the definitions with each asset's spec replaced. Raises ConfigError for a spec with another key."""

    def changed(spec: dg.AssetSpec) -> dg.AssetSpec:
        role = role_of(spec.key, settings)
        found = change(spec, role)
        if found.key == spec.key:
            return found
        raise ConfigError(
            f"the asset {spec.key.to_user_string()} got the key {found.key.to_user_string()} from `translation` or "
            "`get_asset_spec`, but jobs, checks and the supervisor use the first key",
            field="translation",
            next_step=f"leave the key as it is there, and give it by `asset_keys`, under `{role}`",
        )

    return dg.Definitions(
        assets=dg.map_asset_specs(changed, cast("Any", list(defs.assets or []))),
        asset_checks=defs.asset_checks,
        jobs=defs.jobs,
        schedules=defs.schedules,
        sensors=defs.sensors,
        resources=defs.resources,
    )
