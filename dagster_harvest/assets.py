"""The assets of an outbox: outbox and topics. `dagster_harvest.writer` has the assets of a Spark job, and
`dagster_harvest.audit` has the assets of the audit.

    (business table ──►) outbox ──harvester──► topics ──► the audit

Topics are external assets: the harvester fills the topics and reports observations of them.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext
from psycopg.conninfo import conninfo_to_dict

from dagster_harvest.asset_pages import static_metadata
from dagster_harvest.pipes_main import STDERR_VARIABLE, SUCCESS_CODES_VARIABLE
from dagster_harvest.resources import CONFIG_VARIABLE, HarvesterResource
from dagster_harvest.settings import OutboxSettings

_PROCESS_FAILED = "DagsterPipesExecutionError"
"""Name of the subprocess client's error for a process that failed. Dagster exports no class for this error."""
_LONGEST_SAID = 2000


def outside_specs(settings: OutboxSettings, beside: Sequence[OutboxSettings] = ()) -> Sequence[dg.AssetSpec]:
    """Return the external assets: topics unless runs drain into them, and the outbox if no asset writes it.

    `beside` are the other outboxes of the code location. A topic that several outboxes fill is an asset of the first of
    them, by name, and depends on all of them.
    """
    group = settings.name
    specs = [
        dg.AssetSpec(
            key,
            deps=[each.outbox_key for each in filling],
            group_name=group,
            kinds={"kafka"},
            metadata=static_metadata(settings, "kafka"),
            description=f"Topic of the outbox {' and '.join(each.name for each in filling)}; "
            f"{' and '.join(each.daemon_job_name for each in filling)} fills and observes it.",
        )
        for key in settings.topic_keys
        if settings.daemon.mode != "drain" and (filling := _filling(key, settings, beside))[0].name == settings.name
    ]
    if settings.writer is None:
        about = f"The table {settings.stated_table or 'of the outbox'}, which applications write."
        before = settings.upstream_keys
        specs.append(
            dg.AssetSpec(
                settings.outbox_key,
                deps=before,
                group_name=group,
                kinds={"postgres"},
                metadata=static_metadata(settings, "postgres"),
                description=about,
            )
        )
    return specs


def _filling(
    topic: dg.AssetKey, settings: OutboxSettings, beside: Sequence[OutboxSettings]
) -> Sequence[OutboxSettings]:
    """Return the outboxes that fill the topic, by name."""
    found = {each.name: each for each in [*beside, settings] if topic in each.topic_keys}
    return [found[name] for name in sorted(found)]


def run_under_pipes(
    context: AssetExecutionContext,
    settings: OutboxSettings,
    module: str,
    arguments: Sequence[str],
    *,
    name: str | None = None,
    extras: Mapping[str, Any] | None = None,
    well: Sequence[int] = (),
) -> Sequence[Mapping[str, Any]]:
    """Run a module under Dagster Pipes with the harvester's connection. Return the module's messages.

    The module's log becomes part of the run's log. `well` are the exit codes besides 0 that are no failure. A failure
    names `name`, by default the module. The password is passed only in the environment of the process, never in its
    arguments. Raises Failure with the module's last error output.
    """
    resource = _resource(context, settings)
    config = resource.config()
    conninfo = config.data_source.conninfo()
    password = conninfo_to_dict(conninfo).get("password")
    environment = {
        "HARVEST_DSN": conninfo,
        "HARVEST_OUTBOX_TABLE": config.outbox_table,
        "HARVEST_BOOTSTRAP_SERVERS": str(config.base_kafka_config.get("bootstrap.servers", "")),
        "PYTHONPATH": _search_path(),
        SUCCESS_CODES_VARIABLE: ",".join(map(str, well)),
        **({CONFIG_VARIABLE: resource.config_file} if resource.config_file else {}),
        **({"PGPASSWORD": str(password)} if password else {}),
    }
    command = [sys.executable, "-m", "dagster_harvest.pipes_main", module, *arguments]
    client: dg.PipesClient = getattr(context.resources, settings.pipes_key)
    more: dict[str, Any] = {} if extras is None else {"extras": dict(extras)}  # a client of the user's may lack it
    failed: str | None = None
    with tempfile.TemporaryDirectory(prefix="harvest-pipes-") as folder:
        said = Path(folder) / "said"
        environment[STDERR_VARIABLE] = str(said)
        try:
            done = client.run(context=context, command=command, env=environment, **more)
        except Exception as error:
            if type(error).__name__ != _PROCESS_FAILED:
                raise
            words = said.read_text()[-_LONGEST_SAID:].strip() if said.exists() else ""
            failed = f"{name or module} failed: {words or error}"
    if failed is not None:
        raise dg.Failure(
            description=failed,
            metadata={
                "module": module,
                "next_step": "follow its last message, and run this again: nothing is written twice",
            },
            allow_retries=False,
        )
    return list(done.get_custom_messages())


def _search_path() -> str:
    # The new process imports this code from the same folders as Dagster, whether the code is installed or not.
    return ":".join(path for path in sys.path if path)


def _resource(context: AssetExecutionContext, settings: OutboxSettings) -> HarvesterResource:
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    return resource
