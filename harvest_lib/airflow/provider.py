"""The description of this package for Airflow: the connection types, and the fields in their forms.

All of Airflow's processes import this module, so the module must load fast and imports only `typing`.
"""

from typing import Any

OUTBOX_TYPE, OUTBOX_ID = "outbox", "outbox_default"
DAGSTER_TYPE, DAGSTER_ID = "dagster", "dagster_default"

_OUTBOX, _DAGSTER = "Outbox", "Dagster"


def get_provider_info() -> dict[str, Any]:
    """Return the description in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "outbox-harvester",
        "name": "Outbox harvester",
        "description": "Fills a Postgres outbox, delivers it to Kafka, audits the delivery; starts Dagster jobs.",
        "integrations": [
            {
                "integration-name": _OUTBOX,
                "external-doc-url": "https://microservices.io/patterns/data/transactional-outbox.html",
                "tags": ["software"],
            },
            {"integration-name": _DAGSTER, "external-doc-url": "https://dagster.io", "tags": ["service"]},
        ],
        "operators": [
            _modules(_OUTBOX, "operators", "append", "audit", "event_runs", "outbox", "parked", "replay", "segments"),
            _modules(_DAGSTER, "operators", "dagster"),
        ],
        "sensors": [_modules(_OUTBOX, "sensors", "outbox")],
        "triggers": [
            _modules(_OUTBOX, "triggers", "outbox", "outbox_events", "topic_events"),
            _modules(_DAGSTER, "triggers", "dagster"),
        ],
        "hooks": [_modules(_OUTBOX, "hooks", "outbox"), _modules(_DAGSTER, "hooks", "dagster")],
        "extra-links": ["harvest_lib.airflow.links.dagster.DagsterRunLink"],
        "connection-types": [
            {
                "connection-type": OUTBOX_TYPE,
                "hook-class-name": "harvest_lib.airflow.hooks.outbox.HarvestHook",
                "hook-name": _OUTBOX,
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Database"},
                    "placeholders": {"host": "postgres.example.com", "port": "5432", "schema": "shop"},
                },
                "conn-fields": _OUTBOX_FIELDS,
            },
            {
                "connection-type": DAGSTER_TYPE,
                "hook-class-name": "harvest_lib.airflow.hooks.dagster.DagsterHook",
                "hook-name": _DAGSTER,
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Schema (http or https)"},
                    "placeholders": {
                        "host": "dagster.example.com",
                        "port": "3000",
                        "schema": "https",
                        "login": "only for basic authentication",
                    },
                },
                "conn-fields": _DAGSTER_FIELDS,
            },
        ],
    }


def _modules(integration: str, kind: str, *names: str) -> dict[str, Any]:
    return {
        "integration-name": integration,
        "python-modules": [f"harvest_lib.airflow.{kind}.{name}" for name in names],
    }


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": ["string", "null"]}, "description": description}


_OUTBOX_FIELDS = {
    "postgres_conn_id": _text(
        "Postgres connection", "Name of a connection of type Postgres, instead of a host and login here."
    ),
    "sslmode": _text("sslmode", "As libpq takes it: disable, require, verify-ca or verify-full."),
    "outbox_table": _text("Outbox table", "table or schema.table. Default: outbox."),
    "subscription": _text("Subscription", "Name under which the harvester stores its position. Default: default."),
    "leader_group_id": _text(
        "Pool", "Group in which the harvesters of this outbox elect their leader (leaderGroupID)."
    ),
    "kafka_conn_id": _text("Kafka connection", "Name of a connection of type Apache Kafka."),
    "bootstrap_servers": _text("Kafka servers", "bootstrap.servers, instead of a Kafka connection."),
    "settings": _text("Settings", 'Further settings of the harvester, as JSON: {"delivery": "sequenced"}.'),
}
_DAGSTER_FIELDS = {
    "token": {
        "label": "Token",
        "schema": {"type": ["string", "null"], "format": "password"},
        "description": "Instead of login and password.",
    },
    "token_header": {
        "label": "Token header",
        "schema": {"type": ["string", "null"]},
        "description": "Authorization (the default) sends `Bearer TOKEN`. Dagster+ takes Dagster-Cloud-Api-Token.",
    },
    "path": {
        "label": "Path",
        "schema": {"type": ["string", "null"]},
        "description": "Path before /graphql: the deployment of Dagster+, such as prod, or the "
        "--path-prefix of dagster-webserver.",
    },
    "verify": {
        "label": "Check the certificate",
        "schema": {"type": ["boolean", "null"], "default": True},
        "description": "With https. Without it anybody on the network can read the credentials.",
    },
    "ca_file": {
        "label": "CA file",
        "schema": {"type": ["string", "null"]},
        "description": "PEM file of the certificates to trust, where the triggerer runs.",
    },
}
