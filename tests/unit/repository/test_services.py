"""Harvesters, pipelines and consumers as services: compose, the Kubernetes manifests, the systemd units."""

import configparser
import importlib
import inspect
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml
from click import Context
from typer.main import get_command

from harvest_lib.cli import app
from harvest_lib.config import load
from harvest_lib.consume.consumer import END_SECONDS
from harvest_lib.harvester.harvest import STOP_TIMEOUT_SECONDS
from harvest_lib.local_stack.state import default_state
from harvest_lib.pipeline import declaration
from harvest_lib.pipeline.settings import PipelineSettings
from harvest_lib.telemetry import server
from harvest_lib.telemetry.server import parse_address

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
UNIT = INFRA / "systemd" / "harvest@.service"
PIPELINE_UNIT = INFRA / "systemd" / "harvest-pipeline@.service"
CONSUMER_UNIT = INFRA / "systemd" / "harvest-consumer@.service"
MANIFEST = INFRA / "kubernetes" / "harvester.yaml"
PIPELINE_MANIFEST = INFRA / "kubernetes" / "pipeline.yaml"
CONSUMER_MANIFEST = INFRA / "kubernetes" / "consumer.yaml"

UNITS = (UNIT, PIPELINE_UNIT, CONSUMER_UNIT)
KINDS = {
    MANIFEST: {"ConfigMap", "Deployment", "PodDisruptionBudget"},
    PIPELINE_MANIFEST: {"ConfigMap", "StatefulSet"},
    CONSUMER_MANIFEST: {"Deployment", "PodDisruptionBudget"},
}
VERSIONS = ("1.29", "1.35")
"""The oldest and the newest that somebody runs."""


def objects_of(manifest):
    """Return the objects of a manifest by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(manifest.read_text())}


@pytest.fixture
def objects():
    return objects_of(MANIFEST)


@pytest.fixture
def pod(objects):
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def unit():
    return settings_of(UNIT)


def settings_of(unit):
    """Return a unit's settings by section; of those that stand there several times the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text())
    return parser


def dockerfile(instruction):
    """Return the words of the last such instruction that has them as JSON."""
    text = (INFRA / "Dockerfile").read_text().replace("\\\n", " ")
    return json.loads(re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)[-1])


def accepted(words):
    """Return True if the command takes the command line."""
    command = get_command(app)
    name, sub, arguments = command.resolve_command(Context(command), words)
    return sub.make_context(name, list(arguments), resilient_parsing=False)


def test_each_starts_the_command_by_options_it_has(pod, unit):
    (container,) = pod["containers"]
    commands = [dockerfile("CMD"), container["command"], shlex.split(unit["Service"]["ExecStart"])]
    for command in commands:
        assert Path(command[0]).name == "harvest"
        assert accepted(command[1:]).info_name == "run"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", KINDS, ids=lambda each: each.stem)
def test_kubernetes_knows_what_a_manifest_holds(manifest, version):
    objects = objects_of(manifest)
    assert set(objects) == KINDS[manifest]
    for each in objects.values():
        assert kubernetes_validate.validate(each, version, strict=True) == version


@pytest.mark.parametrize("manifest", [MANIFEST, CONSUMER_MANIFEST], ids=lambda each: each.stem)
def test_what_is_deployed_is_a_pool_that_its_selectors_find(manifest):
    objects = objects_of(manifest)
    spec, budget = objects["Deployment"]["spec"], objects["PodDisruptionBudget"]["spec"]
    assert spec["replicas"] > budget["minAvailable"] >= 1
    for selector in (spec["selector"], budget["selector"]):
        assert selector["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_probes_ask_where_it_listens(objects, pod):
    (container,) = pod["containers"]
    probes = {name: each["httpGet"] for name, each in container.items() if name.endswith("Probe")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    (port,) = container["ports"]
    assert {each["port"] for each in probes.values()} == {port["name"]}
    _, listened = parse_address(container["command"][container["command"].index("--listen") + 1])
    annotations = objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert listened == port["containerPort"] == int(annotations["prometheus.io/port"])
    assert f'case "{probes["readinessProbe"]["path"]}":' in inspect.getsource(server)
    assert f'case "{probes["livenessProbe"]["path"]}":' in inspect.getsource(server)
    assert f'case "{annotations["prometheus.io/path"]}":' in inspect.getsource(server)


def test_the_file_that_the_image_looks_at_can_be_written_in_the_pod(pod):
    (container,) = pod["containers"]
    assert "$HARVEST_ALIVE_FILE" in " ".join(dockerfile('CMD \\["sh|HEALTHCHECK'))
    (mounted,) = [each for each in container["volumeMounts"] if each["name"] == "run"]
    assert f"HARVEST_ALIVE_FILE={mounted['mountPath']}/alive" in (INFRA / "Dockerfile").read_text()


def test_a_stop_has_the_time_that_it_takes(pod, unit):
    compose = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["harvester"]
    given = [pod["terminationGracePeriodSeconds"], unit["Service"]["TimeoutStopSec"], compose["stop_grace_period"]]
    assert all(int(str(each).removesuffix("s")) > STOP_TIMEOUT_SECONDS for each in given)


def test_the_pods_are_restricted(pod):
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert set(container["resources"]) == {"requests", "limits"}


def test_what_the_manifest_names_is_there(objects, pod):
    volumes = {each["name"]: each for each in pod["volumes"]}
    (container,) = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]


def test_no_secret_is_in_the_manifest_and_its_configuration_loads(objects, pod, tmp_path):
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "harvester"}}]
    assert "env" not in container
    (name, text), *_ = objects["ConfigMap"]["data"].items()
    file = tmp_path / name
    file.write_text(text)
    assert "password" not in text
    assert load(file).harvest.leader_group_id == "shop-outbox"
    assert f"/{name}" in " ".join(container["command"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_systemd_knows_each_setting_of_the_unit(tmp_path, unit):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    programs = default_state() / "venv" / "bin"
    copy = tmp_path / unit.name.replace("@", "@shop")

    def complaints(text):
        copy.write_text(text.replace("/opt/harvest/bin", str(programs)))
        command = ["systemd-analyze", "verify", "--man=no", copy]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if copy.name in line]

    assert complaints(unit.read_text()) == []
    assert "ProtectSytem" in "".join(complaints(unit.read_text().replace("ProtectSystem", "ProtectSytem")))


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_each_unit_expects_notifications(unit):
    service = settings_of(unit)["Service"]
    assert service["Type"] == "notify"
    assert int(service["TimeoutStartSec"]) > 0
    longest_stop = max(END_SECONDS, STOP_TIMEOUT_SECONDS, PipelineSettings.model_fields["shutdown_seconds"].default)
    assert int(service["WatchdogSec"]) > longest_stop, "one that stops by itself says nothing meanwhile"


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_each_service_is_started_again_after_a_failure_that_another_start_may_mend(unit):
    service = settings_of(unit)["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "3"]
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > END_SECONDS
    assert settings_of(unit)["Unit"]["StartLimitIntervalSec"] == "0", "for as long as servers are away"


def test_a_pipeline_is_started_by_a_command_that_there_is_and_a_declaration_that_loads(tmp_path):
    objects = objects_of(PIPELINE_MANIFEST)
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    for command in (container["command"], shlex.split(settings_of(PIPELINE_UNIT)["Service"]["ExecStart"])):
        assert Path(command[0]).name == "harvest"
        assert command[1:3] == ["pipeline", "run"]
        assert accepted(command[1:])
    ((name, text),) = objects["ConfigMap"]["data"].items()
    file = tmp_path / name
    file.write_text(text)
    declared = declaration.load(file)
    assert f"/{name}" in " ".join(container["command"])
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert declared.settings.folder.is_relative_to(mounted["data"]), "its log outlives the pod"
    spec = objects["StatefulSet"]["spec"]
    assert spec["replicas"] == 1, "one process uses the folder"
    assert [each["metadata"]["name"] for each in spec["volumeClaimTemplates"]] == ["data"]
    stops = [spec["template"]["spec"]["terminationGracePeriodSeconds"]]
    stops.append(int(settings_of(PIPELINE_UNIT)["Service"]["TimeoutStopSec"]))
    assert min(stops) > declared.settings.shutdown_seconds


def test_consumers_are_started_by_a_command_that_there_is():
    pod = objects_of(CONSUMER_MANIFEST)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    python, flag, module, *arguments = container["command"]
    assert (python, flag) == ("python", "-m")
    app = typer.Typer()
    app.command()(importlib.import_module(module).main)
    command = get_command(app)
    given = command.make_context(module, list(arguments), resilient_parsing=True)
    assert parse_address(given.params["listen"])[1] == container["ports"][0]["containerPort"]
    needed = {each.envvar for each in command.params if each.required}
    assert needed == {"HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS"}, "all else is said by the manifest"
    assert all(name in CONSUMER_MANIFEST.read_text() for name in needed)
    assert pod["terminationGracePeriodSeconds"] > END_SECONDS
