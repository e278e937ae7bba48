"""What starts `harvest run` as a service: the compose service, the Kubernetes manifest and the systemd unit."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click import Context
from typer.main import get_command

from harvest_lib.cli import app
from harvest_lib.config import load
from harvest_lib.harvester.harvest import STOP_TIMEOUT_SECONDS
from harvest_lib.local_stack.state import default_state

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
UNIT = INFRA / "systemd" / "harvest@.service"
MANIFEST = INFRA / "kubernetes" / "harvester.yaml"

# The part of the Kubernetes API that the manifest uses, as its reference has it: fields, and what they hold.
SELECTOR = {"matchLabels": {"app.kubernetes.io/name": str}}
PROBE = {"exec": {"command": [str]}, "periodSeconds": int, "timeoutSeconds": int, "failureThreshold": int}
ROOM = {"cpu": str, "memory": str}
CONTAINER = {
    "name": str,
    "image": str,
    "imagePullPolicy": str,
    "command": [str],
    "envFrom": [{"secretRef": {"name": str}}],
    **dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), PROBE),
    "resources": {"requests": ROOM, "limits": ROOM},
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "fsGroup": int, "seccompProfile": {"type": str}},
    "topologySpreadConstraints": [
        {"maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "labelSelector": SELECTOR}
    ],
    "containers": [CONTAINER],
    "volumes": [{"name": str, "configMap": {"name": str}, "emptyDir": {"medium": str, "sizeLimit": str}}],
}
DEPLOYMENT = {
    "replicas": int,
    "selector": SELECTOR,
    "strategy": {"type": str, "rollingUpdate": {"maxSurge": int, "maxUnavailable": int}},
    "minReadySeconds": int,
    "template": {"metadata": {"labels": SELECTOR["matchLabels"]}, "spec": POD},
}
FRAME = {"apiVersion": str, "kind": str, "metadata": {"name": str, "labels": SELECTOR["matchLabels"]}}
KINDS = {
    "ConfigMap": ("v1", {**FRAME, "data": {"harvest.yaml": str}}),
    "Deployment": ("apps/v1", {**FRAME, "spec": DEPLOYMENT}),
    "PodDisruptionBudget": ("policy/v1", {**FRAME, "spec": {"minAvailable": int, "selector": SELECTOR}}),
}


def strange(value, shape, path):
    """Return the paths of what the shape does not have."""
    if isinstance(shape, dict) and isinstance(value, dict):
        unknown = [f"{path}.{key}" for key in value.keys() - shape.keys()]
        return unknown + [
            each for key in value.keys() & shape for each in strange(value[key], shape[key], f"{path}.{key}")
        ]
    if isinstance(shape, list) and isinstance(value, list):
        return [found for each in value for found in strange(each, shape[0], path)]
    return [] if isinstance(shape, type) and type(value) is shape else [path]


@pytest.fixture(scope="module")
def objects():
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def pod(objects):
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def unit():
    """The unit's settings by section; of those that stand there several times the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


def dockerfile(instruction):
    """Return the words of the last such instruction that has them as JSON."""
    text = (INFRA / "Dockerfile").read_text().replace("\\\n", " ")
    return json.loads(re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)[-1])


def accepted(words):
    """Tell whether the command line is one that the command takes."""
    command = get_command(app)
    name, sub, arguments = command.resolve_command(Context(command), words)
    return sub.make_context(name, list(arguments), resilient_parsing=False)


def test_each_starts_the_command_by_options_it_has(pod, unit):
    (container,) = pod["containers"]
    commands = [dockerfile("CMD"), container["command"], shlex.split(unit["Service"]["ExecStart"])]
    for command in commands:
        assert Path(command[0]).name == "harvest"
        assert accepted(command[1:]).info_name == "run"


def test_kubernetes_knows_what_the_manifest_holds(objects):
    assert set(objects) == set(KINDS)
    for kind, (version, shape) in KINDS.items():
        assert objects[kind]["apiVersion"] == version
        assert strange(objects[kind], shape, kind) == []
    assert strange({"replicas": "2", "strateggy": {}}, DEPLOYMENT, "") == [".strateggy", ".replicas"]


def test_the_probes_are_the_health_check_of_the_image(pod):
    (container,) = pod["containers"]
    probes = {name: each for name, each in container.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "livenessProbe", "readinessProbe"}
    assert all(each["exec"]["command"] == dockerfile('CMD \\["sh|HEALTHCHECK') for each in probes.values())
    (mounted,) = [each for each in container["volumeMounts"] if each["name"] == "run"]
    assert f"HARVEST_ALIVE_FILE={mounted['mountPath']}/alive" in (INFRA / "Dockerfile").read_text()


def test_a_stop_has_the_time_that_it_takes(pod, unit):
    compose = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["harvester"]
    given = [pod["terminationGracePeriodSeconds"], unit["Service"]["TimeoutStopSec"], compose["stop_grace_period"]]
    assert all(int(str(each).removesuffix("s")) > STOP_TIMEOUT_SECONDS for each in given)


def test_the_pods_are_restricted_and_a_pool(objects, pod):
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert set(container["resources"]) == {"requests", "limits"}
    spec = objects["Deployment"]["spec"]
    assert spec["replicas"] > objects["PodDisruptionBudget"]["spec"]["minAvailable"] >= 1


def test_what_the_manifest_names_is_there(objects, pod):
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (objects["Deployment"]["spec"]["selector"], objects["PodDisruptionBudget"]["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
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


def test_systemd_knows_each_setting_of_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    harvest = default_state() / "venv" / "bin" / "harvest"
    copy = tmp_path / "harvest@shop.service"

    def complaints(text):
        copy.write_text(text.replace("/opt/harvest/bin/harvest", str(harvest)))
        command = ["systemd-analyze", "verify", "--man=no", copy]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if copy.name in line]

    assert complaints(UNIT.read_text()) == []
    assert "ProtectSytem" in "".join(complaints(UNIT.read_text().replace("ProtectSystem", "ProtectSytem")))


def test_the_unit_speaks_the_protocol_that_the_command_speaks(unit):
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10  # it tells each second
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "on-failure"
