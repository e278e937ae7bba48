"""An outbox in a user's own project, whose `defs.yaml` changes the assets by Dagster's `post_processing`."""

import json
import re
import traceback
from pathlib import Path

import pytest
import yaml
from dagster import AssetKey, AutomationCondition, DagsterInstance, Definitions
from dagster.components.core.component_tree import ComponentTreeException
from support.dagster_project import project

pytestmark = pytest.mark.gate

CHECKS = {"lost", "unknown", "ordering", "duplicates", "schema", "expectations"}
MADE = {"audit/shop_audit", "audit/shop_audit_verified"}


@pytest.fixture
def attributes(outbox, reaper, tmp_path):
    """The attributes of the outbox in the user's `defs.yaml`."""
    return {
        "name": "shop",
        "topics": ["orders"],
        "config_file": str(reaper),
        "audit": {"engine": "spark", "module": "support.audit_stand_in", "docs_folder": str(tmp_path / "docs")},
    }


@pytest.fixture
def audited(attributes, tmp_path, unique):
    """Run the audit's job of a project with such post-processing; return the result."""

    def run(post_processing, **finds):
        if finds:
            # Dagster reads a text that looks like JSON alone as a value; a space before it keeps it a text.
            attributes["audit"]["arguments"] = ["--finds", f" {json.dumps(finds)}"]
        with project(tmp_path / "project", unique("acme"), attributes, post_processing) as defs:
            job = defs.resolve_job_def("shop_audit")
            with DagsterInstance.ephemeral() as instance:
                return job.execute_in_process(instance=instance, raise_on_error=False)

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"group_name": "sales"},
        {"tags": {"team": "sales"}, "owners": ["team:sales"]},
        {"automation_condition": "{{ automation_condition.eager() }}"},
        {"group_name": "sales", "description": "ours", "metadata": {"since": "2026"}},
    ],
    ids=["group", "tags", "automation", "several"],
)
def test_the_audit_audits_whatever_the_projects_post_processing_changes(audited, changes):
    result = audited([{"target": "*", "attributes": changes}])
    assert result.success
    assert {each.check_name for each in result.get_asset_check_evaluations()} == CHECKS
    assert {each.asset_key.to_user_string() for each in result.get_asset_materialization_events()} == MADE


@pytest.mark.full
def test_a_loss_fails_the_audit_of_an_outbox_whose_group_is_the_projects_own(audited):
    assert not audited([{"target": "*", "attributes": {"group_name": "sales"}}], lost=1).success


@pytest.mark.full
def test_an_outbox_may_have_keys_of_its_own(audited, attributes):
    """As for an asset that was renamed, so that its history goes on."""
    attributes["asset_keys"] = {
        "outbox": "outbox/{name}",
        "topic": "kafka/{topic}",
        "audit": "sales/{name}/audit",
        "verified": "sales/{name}/verified",
    }
    result = audited(None)
    assert result.success
    evaluations = result.get_asset_check_evaluations()
    assert {each.check_name for each in evaluations} == CHECKS
    assert {each.asset_key.to_user_string() for each in evaluations} == {"sales/shop/audit"}
    made = {each.asset_key.to_user_string() for each in result.get_asset_materialization_events()}
    assert made == {"sales/shop/audit", "sales/shop/verified"}


def test_a_module_that_drains_has_a_single_object_of_definitions():
    """As the documentation has it. Dagster refuses a module with several."""
    text = (Path(__file__).parents[3] / "docs" / "dagster-run.md").read_text()
    module = {}
    exec(re.search(r"```python\n([^`]*mode=\"drain\"[^`]*)```", text)[1], module)  # noqa: S102 - ours
    (defs,) = (each for each in module.values() if isinstance(each, Definitions))
    assert defs.resolve_job_def("shop_drain")


def test_topics_that_runs_drain_into_may_have_a_schedule_in_yaml(attributes, tmp_path, unique):
    """As the documentation has it."""
    text = (Path(__file__).parents[3] / "docs" / "dagster-run.md").read_text()
    declared = yaml.safe_load(re.search(r"```yaml\n(type: [^`]*mode: drain[^`]*)```", text)[1])
    attributes["daemon"] = declared["attributes"]["daemon"]
    processing = declared["post_processing"]["assets"]
    with project(tmp_path / "project", unique("acme"), attributes, processing) as defs:
        topic = defs.resolve_asset_graph().get(AssetKey(["kafka", "orders_topic"]))
        assert topic.automation_condition == AutomationCondition.on_cron("*/10 * * * *")


@pytest.mark.parametrize("changes", [{"key_prefix": "sales"}, {"key": "sales/summary"}], ids=["prefix", "key"])
def test_other_keys_are_refused_when_the_project_is_loaded(attributes, tmp_path, unique, changes):
    processing = [{"target": "*", "attributes": changes}]
    with (
        pytest.raises(ComponentTreeException) as refused,
        project(tmp_path / "project", unique("acme"), attributes, processing) as defs,
    ):
        defs.get_repository_def()
    assert next(iter(changes)) in "".join(traceback.format_exception(refused.value))
