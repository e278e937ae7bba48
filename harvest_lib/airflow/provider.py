"""The description of this package for Airflow: the connection type, and the fields in the form of a connection.

All of Airflow's processes import this module, so the module must load fast and imports only `typing`.
"""

from typing import Any

CONN_TYPE = "dagster"
CONN_ID = "dagster_default"


def get_provider_info() -> dict[str, Any]:
    """Return the description in the form of Airflow's `provider_info.schema.json`."""
    integration = "Dagster"
    return {
        "package-name": "outbox-harvester",
        "name": "outbox-harvester",
        "description": "Starts Dagster jobs and waits for them in the triggerer.",
        "integrations": [
            {"integration-name": integration, "external-doc-url": "https://dagster.io", "tags": ["service"]}
        ],
        "operators": [{"integration-name": integration, "python-modules": ["harvest_lib.airflow.dagster.operator"]}],
        "triggers": [{"integration-name": integration, "python-modules": ["harvest_lib.airflow.dagster.operator"]}],
        "hooks": [{"integration-name": integration, "python-modules": ["harvest_lib.airflow.dagster.hook"]}],
        "connection-types": [
            {
                "connection-type": CONN_TYPE,
                "hook-class-name": "harvest_lib.airflow.dagster.hook.DagsterHook",
                "hook-name": integration,
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
                "conn-fields": {
                    "token": {
                        "label": "Token",
                        "schema": {"type": ["string", "null"], "format": "password"},
                        "description": "Instead of login and password.",
                    },
                    "token_header": {
                        "label": "Token header",
                        "schema": {"type": ["string", "null"]},
                        "description": "Authorization (the default) sends `Bearer TOKEN`. "
                        "Dagster+ takes Dagster-Cloud-Api-Token.",
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
                },
            }
        ],
    }
