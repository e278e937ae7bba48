"""The component "an outbox", defined by a few lines of `defs.yaml`. `dg scaffold defs` writes these lines."""

import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, field_validator

from dagster_harvest.alert import Tell
from dagster_harvest.alerts import alert_sensor
from dagster_harvest.archive import archive_definitions
from dagster_harvest.assets import outside_specs
from dagster_harvest.audit import audit_definitions
from dagster_harvest.config_check import require_sound_file
from dagster_harvest.customize import Role, SpecChange, customized
from dagster_harvest.daemon import daemon_job, harvest_in
from dagster_harvest.drain import drain_definitions
from dagster_harvest.quality import contract_checks
from dagster_harvest.replay import replay_definitions
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.state_checks import state_checks
from dagster_harvest.supervisor import supervisor_sensor
from dagster_harvest.writer import written_assets

_OFTEN_SET = """\
  # table: sales.outbox            # default: as in the harvester's YAML, or `outbox`
  # config_file: harvest.yaml      # the harvester's YAML, beside this file; default: the file HARVEST_CONFIG names
  # dsn_variable: {variable}_DSN   # the environment variable with the connection string; default: HARVEST_DSN
"""


class OutboxScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    name: str = Field(default="", description="Name of the outbox in Dagster. Default: the folder's name.")
    topics: str = Field(default="orders", description="Kafka topics of its records, with commas between.")

    @field_validator("topics")
    @classmethod
    def _some(cls, topics: str) -> str:
        if not _listed(topics):
            raise ValueError("names no topic: write `--topics orders,refunds`, or leave it out")
        return topics


class OutboxScaffolder(dg.Scaffolder[OutboxScaffoldParams]):
    """Writes a `defs.yaml` that Dagster can load without further edits."""

    @classmethod
    def get_scaffold_params(cls) -> type[OutboxScaffoldParams]:
        """Return the options of the command."""
        return OutboxScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[OutboxScaffoldParams]) -> None:
        """Write the file, with `name` and `topics`, and what is often set as comments."""
        folder = re.sub(r"[^A-Za-z0-9_]", "_", request.target_path.name)
        name = request.params.name or (folder if folder[:1].isalpha() else f"outbox_{folder}")[:50]
        dg.scaffold_component(request, {"name": name, "topics": _listed(request.params.topics)})
        if request.scaffold_format == "yaml":
            file = request.target_path if request.append else request.target_path / "defs.yaml"
            with file.open("a", encoding="utf-8") as opened:
                opened.write(_OFTEN_SET.format(variable=name.upper()))


def _listed(topics: str) -> list[str]:
    return [topic.strip() for topic in topics.split(",") if topic.strip()]


@dg.scaffold_with(OutboxScaffolder)
class OutboxComponent(OutboxSettings, dg.Component):
    """An outbox: the run that harvests it and its supervisor, its assets, its checks, its nightly audit.

    type: dagster_harvest.components.OutboxComponent
    attributes:
      name: shop
      topics:
        - orders

    A subclass may override `get_asset_spec` and `execute`.
    """

    translation: (
        Annotated[
            TranslationFn[Role],
            TranslationFnResolver[Role](template_vars_for_translation_fn=lambda role: {"role": role}),
        ]
        | None
    ) = Field(default=None, examples=[{"owners": ["team:sales"], "tags": {"role": "{{ role }}"}}])
    """Attributes of every asset of the outbox: owners, tags, group, metadata, automation condition. A template may use
    `spec`, the asset's spec, and `role`: `business`, `outbox`, `topic`, `audit`, `verified`, `archive` or
    `replay`. It may not change keys."""

    def get_asset_spec(self, spec: dg.AssetSpec, role: Role) -> dg.AssetSpec:
        """Return the spec that an asset of the outbox gets, with another group, owners, tags or metadata. The key must
        stay. The default applies `translation`."""
        return spec if self.translation is None else self.translation(spec, role)

    def execute(self, context: dg.OpExecutionContext) -> None:
        """Harvest, as the body of the op of `<name>_harvester_daemon`, until the run has to end. Raises Failure with
        cause, evidence and next step."""
        harvest_in(context, self)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the outbox. Resource keys contain its name, so that there may be many outboxes.

        Raises ConfigError for a `config_file` that cannot be right.
        """
        require_sound_file(self, context.project_root)
        tree = context.component_tree
        # A context that Dagster makes for a test has no module, and so no other components.
        beside = tree.get_all_components(of_type=OutboxComponent) if isinstance(tree.defs_module, ModuleType) else []
        return outbox_definitions(self, get_asset_spec=self.get_asset_spec, execute=self.execute, beside=beside)


def outbox_definitions(
    settings: OutboxSettings,
    *,
    tell: Tell | None = None,
    get_asset_spec: SpecChange | None = None,
    execute: Callable[[dg.OpExecutionContext], None] | None = None,
    beside: Sequence[OutboxSettings] = (),
) -> dg.Definitions:
    """Return the definitions of an outbox, for a project without YAML.

    `tell` is called with each `Alert`, in place of the function `alerts.tell` of the settings. `get_asset_spec` and
    `execute` are as the methods of OutboxComponent. `beside` are other outboxes of the code location: a topic that
    several of them fill is then a single asset. Raises ConfigError if `get_asset_spec` changes a key.
    """
    daemon = daemon_job(settings, execute) if settings.daemon.mode == "run" else None
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [*outside_specs(settings, beside)]
    if settings.writer is not None:
        assets.append(written_assets(settings, settings.writer))
    jobs: list[Any] = [] if daemon is None else [daemon]
    if settings.writer is not None:
        jobs.append(
            dg.define_asset_job(
                settings.load_job_name,
                selection=dg.AssetSelection.assets(*filter(None, (settings.business_key, settings.outbox_key))),
                executor_def=dg.in_process_executor,
                tags=settings.run_tags.of("load"),
                description="Writes a partition: business rows and their records, in a single transaction.",
            )
        )
    found = dg.Definitions(
        assets=assets,
        asset_checks=[state_checks(settings), *contract_checks(settings)],
        jobs=jobs,
        sensors=[supervisor_sensor(settings, daemon), alert_sensor(settings, tell)],
        resources={
            settings.resource_key: HarvesterResource(
                config_file=settings.config_file,
                dsn=settings.stated_dsn,
                outbox_table=settings.stated_table,
            ),
            **({} if settings.pipes_resource else {settings.pipes_key: dg.PipesSubprocessClient()}),
        },
    )
    more = [] if settings.audit is None else [audit_definitions(settings, settings.audit)]
    more += [] if settings.archive is None else [archive_definitions(settings, settings.archive)]
    more += [replay_definitions(settings)] if settings.replays else []
    more += [drain_definitions(settings, beside)] if settings.daemon.mode == "drain" else []
    merged = dg.Definitions.merge(found, *more)
    return merged if get_asset_spec is None else customized(merged, settings, get_asset_spec)
