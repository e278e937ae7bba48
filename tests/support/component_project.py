"""A project of a user, with components in its folder of definitions."""

import traceback

import dagster as dg
import yaml

TYPE = "dagster_harvest.components.OutboxComponent"
SOUND = "leaderGroupID: shop\nbaseKafkaConfig: {bootstrap.servers: 'kafka:9092'}\n"
FULL = {
    "name": "shop",
    "topics": ["orders"],
    "writer": {"module": "json.tool", "table": "sales", "start": "2026-01-01"},
    "archive": {"url": "/srv/archive"},
    "replays": [{"subscription": "v2", "topics": {"orders": "orders.v2"}}],
}
"""An outbox with every asset that there is."""


class Project:
    """`add` writes a component into a folder of it, `load` returns its definitions."""

    def __init__(self, sandbox):
        self.package = sandbox.project_name
        self.folder = sandbox.defs_folder_path
        self._sandbox = sandbox

    def add(self, attributes, type_=TYPE, **further):
        place = self.folder / attributes["name"]
        place.mkdir()
        declared = {"type": type_, "attributes": attributes, **further}
        (place / "defs.yaml").write_text(yaml.safe_dump(declared))
        return place

    def component(self, place):
        with self._sandbox.load_component_and_build_defs(place) as (found, _):
            return found

    def load(self):
        with self._sandbox.build_all_defs() as found:
            dg.Definitions.validate_loadable(found)
            return found


def specs(defs):
    """Return the specs of the assets that are defined, by their keys."""
    found = defs.resolve_all_asset_specs()
    return {spec.key.to_user_string(): spec for spec in found}


def said(error):
    return "".join(traceback.format_exception(error))
