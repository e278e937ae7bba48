"""The report on packages beside our own, with the real lock, the real uv and a database with fixed answers."""

import json
import re
import socket
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra import supply_chain
from infra.supply_chain import ROOT, main, unhashed

pytestmark = pytest.mark.gate

KNOWN = "GHSA-test-test-test"


class Database(BaseHTTPRequestHandler):
    """Answer as OSV does: PyYAML has a vulnerability, fixed in a version that the test names."""

    fixed = None

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        known = {"vulns": [{"id": KNOWN, "modified": "2026-01-01T00:00:00Z"}]}
        self._answer({"results": [known if each["package"]["name"] == "pyyaml" else {} for each in asked]})

    def do_GET(self):
        events = [{"introduced": "0"}, *([{"fixed": self.fixed}] if self.fixed else [])]
        package = {"ecosystem": "PyPI", "name": "pyyaml"}
        affected = [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]
        self._answer({"id": KNOWN, "modified": "2026-01-01T00:00:00Z", "affected": affected})

    def _answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_question_that_is_wrong_is_no_silence(capfd, monkeypatch):
    monkeypatch.delenv("HARVEST_AUDIT", raising=False)
    assert main(["audit", "--no-such-option"]) != 0
    assert "--no-such-option" in capfd.readouterr().err


@pytest.fixture
def database(request):
    answers = type("Told", (Database,), {"fixed": request.param})
    with HTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def review(tmp_path, monkeypatch):
    """Return a function that sets what `tool.uv.audit` of `pyproject.toml` has."""
    file = tmp_path / "uv.toml"
    monkeypatch.setenv("UV_CONFIG_FILE", str(file))
    monkeypatch.delenv("HARVEST_AUDIT", raising=False)

    def write(*known):
        file.write_text(f"[audit]\nignore-until-fixed = {json.dumps(known)}\n")

    write()
    return write


@pytest.mark.parametrize("database", [None], indirect=True)
def test_what_is_known_fails_the_audit_unless_it_was_reviewed(database, review, capfd):
    assert main(["audit", "--service-url", database]) == 1
    assert KNOWN in capfd.readouterr().err
    review(KNOWN)
    assert main(["audit", "--service-url", database]) == 0


@pytest.mark.parametrize("database", ["99"], indirect=True)
def test_a_review_holds_until_there_is_a_fix(database, review):
    review(KNOWN)
    assert main(["audit", "--service-url", database]) == 1


@pytest.mark.full
@pytest.mark.parametrize(("audit", "code"), [("", 0), ("required", 2)])
def test_nobody_to_ask_is_said_and_fails_where_it_has_to(review, capfd, monkeypatch, audit, code):
    monkeypatch.setenv("HARVEST_AUDIT", audit)
    assert main(["audit", "--service-url", "http://127.0.0.1:1"]) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert "NOTHING WAS AUDITED" in line
    assert "refused" in line


def test_a_silent_database_is_waited_for_with_a_limit(review, capfd, monkeypatch):
    asked = []
    monkeypatch.setattr(supply_chain, "_AUDIT_SECONDS", 1)
    run = supply_chain.subprocess.run
    monkeypatch.setattr(supply_chain.subprocess, "run", lambda *a, **named: asked.append(named) or run(*a, **named))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert main(["audit", "--service-url", f"http://127.0.0.1:{silent.getsockname()[1]}"]) == 0
    assert asked[0]["timeout"] == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "timed out after 1 s" in line


def test_a_review_gives_its_reason():
    (entries,) = re.findall(r"^ignore-until-fixed = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert [each for each in entries.splitlines() if each and not re.fullmatch(r' +"\S+", +# .+', each)] == []


def test_the_bill_names_all_that_is_locked(tmp_path):
    file = tmp_path / "dist" / "sbom.json"
    assert main(["sbom", str(file)]) == 0
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    locked = {(each["name"], each["version"]) for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = bill["metadata"]["component"]
    named = [(each["name"], each["version"]) for each in [*bill["components"], ours]]
    assert len(named) == len(set(named))
    assert set(named) == locked
    for component in bill["components"]:
        hashes = [each["alg"] for file in component["externalReferences"] for each in file["hashes"]]
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert hashes
        assert set(hashes) == {"SHA-256"}
    assert {each["ref"] for each in bill["dependencies"]} <= {each["bom-ref"] for each in [*bill["components"], ours]}


def test_a_file_without_a_hash_is_found():
    wheel = {"url": "https://example.org/a.whl", "hash": "sha256:00"}
    package = {"name": "a", "version": "1", "source": {"registry": "https://example.org"}}
    assert list(unhashed({"package": [{**package, "wheels": [wheel]}]})) == []
    assert list(unhashed({"package": [{**package, "wheels": [wheel, {**wheel, "hash": ""}]}]})) == ["a"]
    assert list(unhashed({"package": [package]})) == ["a"]
