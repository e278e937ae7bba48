"""The Prometheus of `harvest platform --observe`: a real one, with the rules, which scrapes the configured place."""

import http.server
import os
import threading
from pathlib import Path

import pytest
import yaml
from support.machine import has_program, require
from support.waiting import eventually

from harvest_lib.errors import StackError
from infra.platform.prometheus import JOB, PlatformPrometheus
from infra.platform.service import Service, ask

pytestmark = pytest.mark.full

RULES = Path(__file__).parents[3] / "infra" / "monitoring" / "alerts.yml"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"harvest_leader 1\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def prometheus(tmp_path):
    lacking = (
        None if has_program("prometheus") else "there is no Prometheus: `make setup` installs it, as root on Debian"
    )
    require(lacking, "prometheus")
    made = PlatformPrometheus(tmp_path)
    made.prepare()
    service = Service(made.plan(dict(os.environ)), logs=tmp_path)
    service.spawn()
    yield made
    service.stop()
    assert ask(f"{made.url}/api/v1/targets") is None


def test_it_has_our_rules_and_scrapes_where_a_harvester_listens(prometheus):
    rules = eventually(lambda: ask(f"{prometheus.url}/api/v1/rules"), "Prometheus answers")["data"]["groups"]
    written = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    named = [rule.get("alert") or rule["record"] for rule in written]
    assert [rule["name"] for group in rules for rule in group["rules"]] == named
    host, _, port = prometheus.listen.partition(":")
    with http.server.ThreadingHTTPServer((host, int(port)), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        found = eventually(
            lambda: ask(f"{prometheus.url}/api/v1/query?query=harvest_leader")["data"]["result"], "a scrape", seconds=60
        )
        page.shutdown()
    assert (
        found[0]["metric"] | {"__name__": "harvest_leader", "job": JOB, "instance": prometheus.listen}
        == found[0]["metric"]
    )


def test_a_machine_without_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="no Prometheus on this machine") as error:
        PlatformPrometheus(tmp_path)
    assert "install" in error.value.next_step
