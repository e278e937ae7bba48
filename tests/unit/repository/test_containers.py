"""The compose file and the Helm values, held against what their tools document: no engine is needed for that."""

import json
import re
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.local_stack import kafka, postgres

pytestmark = pytest.mark.quick

INFRA = Path(__file__).parents[3] / "infra"
NAME = "^[a-zA-Z0-9._-]+$"
KINDS = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "switch": {"type": "boolean"},
    "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    "image": {"type": "string", "pattern": "^[a-z0-9/._-]+:[a-zA-Z0-9._-]+$"},
    "path": {"type": "string", "pattern": "^/"},
    "seconds": {"type": "string", "pattern": "^[0-9]+s$"},
    "quantity": {"type": "string", "pattern": "^[0-9]+(m|Mi|Gi)?$"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
}


def schema_of(shape):
    """Return the JSON schema of a shape: `key!` is required, `*` any name, a list holds one shape, and what is neither
    a kind nor a shape is the value itself, or one of several."""
    if isinstance(shape, dict):
        known = {key.rstrip("!"): schema_of(value) for key, value in shape.items()}
        names = {"patternProperties": {NAME: known.pop("*")}} if "*" in known else {}
        required = [key[:-1] for key in shape if key.endswith("!")]
        return {"type": "object", "additionalProperties": False, "required": required, "properties": known, **names}
    if isinstance(shape, list):
        return {"type": "array", "items": schema_of(shape[0]), "minItems": 1}
    return KINDS.get(shape) or {"enum": shape.split("|") if isinstance(shape, str) else [shape]}


# The part of the Compose Specification's own schema that the file makes use of; stricter where we can be: lists and not
# strings for what would be split, mappings and not lists for the environment, health checks whole.
COMPOSE = schema_of(
    yaml.safe_load("""
name!: name
services!:
  "*":
    image!: image
    build: {context!: text, dockerfile!: text, target: text}
    command: [text]
    environment: texts
    configs: [{source!: text, target!: path}]
    ports: [text]
    volumes: [text]
    init: switch
    profiles: [text]
    deploy: {replicas: number}
    stop_grace_period: seconds
    read_only: switch
    tmpfs: [text]
    cap_drop: [text]
    security_opt: [text]
    restart: "no|always|on-failure|unless-stopped"
    depends_on: {"*": {condition!: service_started|service_healthy|service_completed_successfully}}
    healthcheck: {test!: [text], interval!: seconds, timeout!: seconds, retries!: number}
configs: {"*": {content!: text}}
volumes: {"*": {}}
""")
)
COMPOSE["patternProperties"] = {"^x-": {}}

# The keys of the charts that we set, as their documented values have them.
SHARED = """
image: &image {repository!: text, tag!: text, pullPolicy: text}
seccomp: &seccomp {type!: RuntimeDefault}
room: &room {cpu!: quantity, memory!: quantity}
resources: &resources {requests!: *room, limits!: *room}
sized: &sized {resources!: *resources}
pod: &pod {runAsNonRoot!: true, runAsUser!: 10001, fsGroup: 10001, seccompProfile!: *seccomp}
container: &container {allowPrivilegeEscalation!: false, capabilities!: {drop!: [ALL]}}
limited: &limited {podSecurityContext!: *pod, securityContext!: *container, resources!: *resources}
"""
DAGSTER_CHART, AIRFLOW_CHART = (
    schema_of(yaml.safe_load(f"{SHARED}chart:{chart}")["chart"])
    for chart in (
        """
  global: {postgresqlSecretName: text}
  dagsterWebserver: {<<: *limited, replicaCount: number}
  dagsterDaemon: {<<: *limited, enabled: switch}
  runLauncher:
    type!: K8sRunLauncher
    config!:
      k8sRunLauncher:
        envSecrets: [{name!: text}]
        securityContext!: {<<: *container, runAsNonRoot!: true, runAsUser!: 10001, seccompProfile: *seccomp}
        resources!: *resources
  dagster-user-deployments:
    enabled: switch
    deployments:
    - <<: *limited
      name!: text
      image!: *image
      dagsterApiGrpcArgs!: [text]
      port!: number
      envSecrets: [{name!: text}]
  generatePostgresqlPasswordSecret: switch
  postgresql: {enabled: switch, postgresqlHost: text, postgresqlUsername: text, postgresqlDatabase: text}
  telemetry: {enabled: switch}
""",
        """
  securityContexts!: {pod!: *pod, containers!: *container}
  scheduler!: *sized
  apiServer!: *sized
  dagProcessor!: *sized
  migrateDatabaseJob!: *sized
  triggerer!: {<<: *sized, enabled: switch, replicas: number}
  airflowVersion: text
  executor: LocalExecutor
  uid: number
  images: {airflow: *image}
  config: {core: texts}
  extraEnvFrom: text
  data: {metadataSecretName: text}
  fernetKeySecretName: text
  apiSecretKeySecretName: text
  jwtSecretName: text
  postgresql: {enabled!: switch}
  redis: {enabled!: switch}
  statsd: {enabled!: switch}
""",
    )
)


def content(name):
    return yaml.safe_load((INFRA / name).read_text())


def complaints(schema, document):
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(schema).iter_errors(document)]


@pytest.fixture(scope="module")
def compose():
    return content("compose.yaml")


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("compose.yaml", COMPOSE),
        ("helm/values-dagster.yaml", DAGSTER_CHART),
        ("helm/values-airflow.yaml", AIRFLOW_CHART),
    ],
)
def test_the_files_hold_only_what_their_tools_know(name, schema):
    assert complaints(schema, content(name)) == []


def test_what_is_named_is_there(compose):
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {each["source"] for each in service.get("configs", ())} <= set(compose["configs"])
        assert {volume.split(":")[0] for volume in service.get("volumes", ())} <= set(compose["volumes"])
        for name, condition in service.get("depends_on", {}).items():
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
    built = [service["build"] for service in services.values() if "build" in service]
    assert [(INFRA / build["context"] / build["dockerfile"]).exists() for build in built] == [True, True]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)
    assert {build["target"] for build in built if "target" in build} <= set(stages)
    images = {service["image"] for service in services.values() if "build" in service}
    assert {each["image"] for each in services.values() if each["image"].startswith("outbox-harvester")} == images


def test_nothing_is_open_to_the_network_and_no_password_stands_there(compose):
    text = (INFRA / "compose.yaml").read_text()
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    asked = set(re.findall(r"\$\{(\w+):\?\}", text))
    example = (INFRA / "compose.env.example").read_text()
    assert asked == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY|CONN(_ASYNC)?$", name):
                assert "${" in value or name.startswith("AIRFLOW_CONN"), name


def test_everything_of_harvest_up_all_is_there(compose):
    assert {name for name, each in compose["services"].items() if "profiles" not in each} == {
        *(
            "postgres",
            "kafka",
            "harvest-init",
            "dagster-code",
            "dagster-webserver",
            "dagster-daemon",
            "airflow-migrate",
        ),
        *("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"),
    }


def test_the_servers_are_of_the_versions_that_are_tested(compose):
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{kafka.VERSIONS[0]}"
    assert compose["services"]["postgres"]["image"] == f"postgres:{max(postgres.VERSIONS)}"


def test_nothing_of_ours_is_the_superuser(compose):
    for name, service in compose["services"].items():
        dsn = service.get("environment", {}).get("HARVEST_DSN")
        user = "harvester" if name == "harvester" else "outbox_owner"
        assert dsn is None or conninfo_to_dict(dsn)["user"] == user, name
        held = [key for key, value in service.get("environment", {}).items() if "POSTGRES_PASSWORD:" in value]
        assert held == (["POSTGRES_PASSWORD"] if name == "postgres" else []), name


def test_what_harvests_knows_its_pool_and_users_do_not_get_the_example(compose):
    harvesting = [
        each["environment"]
        for name, each in compose["services"].items()
        if name == "harvester" or name.startswith("dagster-")
    ]
    assert [each["HARVEST_LEADER_GROUP_ID"] for each in harvesting] == ["outbox"] * 4
    values = (INFRA / "helm" / "values-dagster.yaml").read_text()
    assert "HARVEST_LEADER_GROUP_ID" in values
    assert "dagster_harvest" not in values, "the module of the definitions is the user's"


def test_airflow_is_told_by_options_it_has(compose):
    known = yaml.safe_load((Path(find_spec("airflow").origin).parent / "config_templates" / "config.yml").read_text())
    options = compose["services"]["airflow-scheduler"]["environment"]
    for name in options:
        if name.startswith("AIRFLOW__"):
            _, section, option = name.lower().split("__")
            assert option in known[section]["options"], name
    values = content("helm/values-airflow.yaml")
    assert set(values["config"]["core"]) <= set(known["core"]["options"])


def test_the_versions_are_those_of_the_environment():
    assert content("helm/values-airflow.yaml")["airflowVersion"] == version("apache-airflow-core")
    assert f"--version {version('dagster')} " in (INFRA / "helm" / "values-dagster.yaml").read_text()


def test_what_containers_are_told_is_yaml(compose):
    for name in ("dagster", "workspace"):
        assert yaml.safe_load(compose["configs"][name]["content"])
    for name, value in compose["services"]["airflow-triggerer"]["environment"].items():
        if name.startswith("AIRFLOW_CONN"):
            assert json.loads(value)["conn_type"] == "kafka"


def test_the_image_installs_what_the_lock_names_and_nothing_else():
    dockerfile = (INFRA / "Dockerfile").read_text()
    commands = [each.strip(" \\\n") for each in re.split(r"&&|\nRUN |\n[A-Z]+ ", dockerfile.replace("\\\n", " "))]
    installs = [
        each for each in commands if re.match(r"(?:python -m )?(?:uv )?pip |uv (?!sync)|pipx |curl |wget ", each)
    ]
    assert installs == ["pip install --no-cache-dir --require-hashes --no-deps -r /tmp/image-uv.txt"]
    synced = [each for each in commands if each.startswith("uv sync")]
    assert len(synced) == 4
    assert all("--frozen" in each for each in synced)
    extras = set(re.findall(r"--extra (\w+)", dockerfile))
    project = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["project"]
    assert extras <= set(project["optional-dependencies"])
    assert "image" in extras


def test_the_uv_of_the_image_is_that_of_the_lock():
    lock = tomllib.loads((INFRA.parent / "uv.lock").read_text())
    (locked,) = [package for package in lock["package"] if package["name"] == "uv"]
    text = (INFRA / "image-uv.txt").read_text()
    assert re.findall(r"^uv==(\S+)", text, re.MULTILINE) == [locked["version"]]
    known = {each["hash"] for each in [*locked["wheels"], locked["sdist"]]}
    assert set(re.findall(r"--hash=(\S+)", text)) == known
