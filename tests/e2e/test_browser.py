"""The pages that operators look at, in a real browser; their screenshots stay in `.harvest/screenshots`.

The browser is a Chromium of the system's, or Playwright's own. Where there is none these tests say so and skip; where
CI is set that is an error.
"""

import os
import shutil
from urllib.parse import quote

import pytest
import yaml
from playwright.sync_api import Error, expect, sync_playwright
from psycopg.conninfo import conninfo_to_dict
from support.machine import require

from infra.chaos.prometheus import prometheus_lacking
from infra.monitoring.scaled_rules import FILE, scaled

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

_SLOW = 60_000  # milliseconds; the machine may be busy
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    with sync_playwright() as playwright:
        launched, trouble = None, ""
        for path in dict.fromkeys([found, None]):
            try:
                # As root there is no sandbox to be had.
                launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                break
            except Error as error:
                trouble = error.message[:200]
        if launched is None:
            missing = f"no browser: install chromium, or run `playwright install chromium` ({trouble})"
            if os.environ.get("CI"):
                pytest.fail(missing)
            pytest.skip(missing)
        yield launched
        launched.close()


@pytest.fixture
def page(browser):
    opened = browser.new_page(viewport={"width": 1600, "height": 1000})
    opened.set_default_timeout(_SLOW)
    expect.set_options(timeout=_SLOW)
    yield opened
    opened.close()


@pytest.fixture
def keep(page, parts):
    """Take a picture of the page."""
    folder = parts / "screenshots"
    folder.mkdir(exist_ok=True)

    def shoot(name):
        page.wait_for_load_state("networkidle")  # states and numbers come after the frame
        page.screenshot(path=folder / f"{name}.png", animations="disabled")

    return shoot


def test_the_asset_graph_shows_all_from_the_source_to_the_proof(platform, loaded, page, keep):
    page.goto(f"{platform.dagster_url}/asset-groups")
    for asset in ("flights", "flights_outbox", "flights_topic", "flights_audit", "flights_audit_verified"):
        expect(page.get_by_text(asset, exact=True).first).to_be_visible()
    keep("dagster-assets")


def test_the_checks_show_their_numbers(platform, loaded, page, keep):
    page.goto(f"{platform.dagster_url}/assets/audit/flights_audit?view=checks")
    for check in ("lost", "unknown", "ordering", "duplicates", "schema", "expectations"):
        expect(page.get_by_text(check, exact=True).first).to_be_visible()
    page.get_by_text("lost", exact=True).first.click()
    expect(page.get_by_text("records are committed and not in Kafka").first).to_be_visible()
    keep("dagster-checks")


def test_the_daemons_run_tells_its_numbers_as_it_goes(platform, loaded, page, keep):
    run = next(run for run, status in platform.dagster.runs("flights_harvester_daemon").items() if status == "STARTED")
    page.goto(f"{platform.dagster_url}/runs/{run}")
    expect(page.get_by_text("Started", exact=True).first).to_be_visible()
    expect(page.get_by_text("delivered 842", exact=False).first).to_be_visible()
    keep("dagster-daemon")


def test_the_topic_has_its_throughput_plotted(platform, loaded, page, keep):
    page.goto(f"{platform.dagster_url}/assets/kafka/flights_topic?view=overview")
    expect(page.get_by_text("delivered_records", exact=True).first).to_be_visible()
    page.get_by_text("Plots", exact=True).click()
    expect(page.locator("canvas").first).to_be_visible()
    keep("dagster-topic")


def test_prometheus_has_all_rules_and_draws_what_is_delivered(platform, loaded, page, keep):
    require(prometheus_lacking(), "prometheus")
    page.goto(platform.prometheus_url)
    page.get_by_role("link", name="Alerts", exact=True).click()
    rules = [each.name for each in scaled(yaml.safe_load(FILE.read_text()), 1.0)[1]]
    for rule in rules:
        expect(page.get_by_text(rule, exact=True).first).to_be_visible()
    keep("prometheus-alerts")
    delivered = "sum by (shard) (rate(harvest_delivered_records_total[5m])) > 0"
    graph = page.url.rpartition("/")[0] + "/graph"
    page.goto(f"{graph}?g0.range_input=5m&g0.tab=0&g0.expr={quote(delivered)}")
    expect(page.get_by_text('{shard="0"}').first).to_be_visible()
    keep("prometheus-graph")


@pytest.fixture
def airflow(platform, page):
    """Airflow's page, logged in."""
    page.goto(platform.airflow_url)
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(platform.airflow_password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "login" not in url)
    return platform.airflow_url


def test_airflow_shows_the_day_in_its_grid(loaded, airflow, page, keep):
    page.goto(f"{airflow}/dags/harvest_flights_day")
    for task in ("load", "harvested", "audit"):
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    keep("airflow-grid")


def test_airflow_offers_a_connection_to_an_outbox_and_tests_it(platform, loaded, airflow, page, keep):
    parts = conninfo_to_dict(platform.dsn)
    page.goto(f"{airflow}/connections")
    page.get_by_role("button", name="Add Connection").click()
    page.get_by_role("combobox").last.click()
    page.get_by_role("option", name="Outbox", exact=True).click()
    page.locator("input[name=connection_id]").fill("shop_outbox")
    page.get_by_placeholder("postgres.example.com").fill(parts["host"])
    page.get_by_placeholder("5432").fill(parts["port"])
    page.get_by_placeholder("shop", exact=True).fill(parts["dbname"])
    page.locator("input[name=login]").fill(parts["user"])
    page.locator("input[name=password]").fill(parts.get("password", ""))
    page.get_by_text("Extra Fields", exact=True).click()
    for label in ("Outbox table", "Subscription", "Pool", "Postgres connection", "Kafka connection", "Settings"):
        expect(page.get_by_text(label, exact=True).first).to_be_visible()
    page.locator("input[name=element_kafka_conn_id]").fill("harvest_kafka")
    page.locator("input[name=element_leader_group_id]").fill("harvest-local")
    page.locator("input[name=element_sslmode]").fill("disable")
    keep("airflow-outbox-connection")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="shop_outbox")
    expect(row).to_be_visible()
    with page.expect_response("**/api/v2/connections/test") as answered:
        row.get_by_role("button", name="Test Connection").click()
    assert answered.value.json()["status"], answered.value.text()


def test_airflow_offers_a_connection_to_dagster_and_tests_it(platform, airflow, page, keep):
    page.goto(f"{airflow}/connections")
    page.get_by_role("button", name="Add Connection").click()
    page.get_by_role("combobox").last.click()
    page.get_by_role("option", name="Dagster", exact=True).click()
    page.locator("input[name=connection_id]").fill("shop_dagster")
    page.get_by_placeholder("dagster.example.com").fill("127.0.0.1")
    page.get_by_placeholder("3000").fill(platform.dagster_url.rpartition(":")[2])
    page.get_by_text("Extra Fields", exact=True).click()
    for label in ("Token", "Token header", "Path", "Check the certificate", "CA file"):
        expect(page.get_by_text(label, exact=True).first).to_be_visible()
    expect(page.locator("input[name=element_token]")).to_have_attribute("type", "password")
    keep("airflow-connection")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="shop_dagster")).to_be_visible()
    with page.expect_response("**/api/v2/connections/test") as answered:
        page.get_by_role("button", name="Test Connection").first.click()
    assert answered.value.json()["status"], answered.value.text()
