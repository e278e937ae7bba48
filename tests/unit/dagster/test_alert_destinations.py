"""Destinations of alerts: each speaks to a real server, and a wrong setting is an error with a next step."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import ValidationError

from dagster_harvest.alert import Alert, log_alert
from dagster_harvest.alert_destinations import AlertRefused, destinations
from dagster_harvest.alert_settings import AlertSettings, EmailSettings, SlackSettings, WebhookSettings
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

ALERT = Alert(
    kind="check_failed", outbox="shop", text="shop: parked: 3 records are parked", next_step="list them", checks=("a",)
)


def served(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def web():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.seen.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(json.dumps(self.server.answer).encode())

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.status, server.answer = [], 200, {"ok": True}
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield from served(server)


@pytest.fixture
def mail():
    """A server that takes a mail as SMTP has it, without encryption."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self._say("220 here")
            while line := self.rfile.readline().decode().strip():
                if line.upper() == "DATA":
                    self._say("354 go on")
                    body = []
                    while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        body.append(text)
                    self.server.seen.append("\n".join(body))
                if line.upper() == "QUIT":
                    self._say("221 bye")
                    return
                self._say("250 fine")

        def _say(self, text):
            self.wfile.write(f"{text}\r\n".encode())

    server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    yield from served(server)


def slack(web, monkeypatch):
    monkeypatch.setenv("SHOP_SLACK", "xoxb-canary-7f")
    settings = SlackSettings(channel="#on-call", token_variable="SHOP_SLACK", api_url=web.url)
    return destinations(AlertSettings(slack=settings))["slack"]


def test_slack_gets_the_text_in_its_channel(web, monkeypatch):
    slack(web, monkeypatch)(ALERT)
    ((path, token, body),) = web.seen
    assert (path, token, body["channel"]) == ("/chat.postMessage", "Bearer xoxb-canary-7f", "#on-call")
    assert "3 records are parked" in body["text"]
    assert "next step: list them" in body["text"]


def test_what_slack_refuses_is_an_error_with_the_next_step(web, monkeypatch):
    web.answer = {"ok": False, "error": "not_in_channel"}
    with pytest.raises(AlertRefused, match="not_in_channel") as refused:
        slack(web, monkeypatch)(ALERT)
    assert "invite it to #on-call" in refused.value.next_step
    assert "canary" not in str(refused.value)


def webhook(monkeypatch, url):
    monkeypatch.setenv("SHOP_HOOK", url)
    return destinations(AlertSettings(webhook=WebhookSettings(url_variable="SHOP_HOOK")))["webhook"]


def test_a_webhook_gets_the_fields_as_json(web, monkeypatch):
    webhook(monkeypatch, f"{web.url}/hook")(ALERT)
    ((path, token, body),) = web.seen
    assert (path, token) == ("/hook", None)
    assert body["text"] == ALERT.text
    assert (body["kind"], body["outbox"], body["checks"], body["is_recovery"]) == ("check_failed", "shop", ["a"], False)


def test_a_webhook_that_refuses_is_named_without_its_address(web, monkeypatch):
    web.status = 500
    with pytest.raises(AlertRefused, match="HTTP status 500") as refused:
        webhook(monkeypatch, f"{web.url}/canary-7f")(ALERT)
    assert "canary" not in str(refused.value)
    with pytest.raises(ConfigError, match="SHOP_HOOK holds no http or https URL"):
        webhook(monkeypatch, "file:///etc/passwd")(ALERT)


def test_mail_is_sent_to_all_recipients(mail):
    host, port = mail.server_address
    email = EmailSettings(to=["a@x.org", "b@x.org"], sender="dagster@x.org", host=host, port=port, encryption="none")
    destinations(AlertSettings(email=email))["email"](ALERT)
    (text,) = mail.seen
    assert "Subject: shop: parked: 3 records are parked" in text
    assert "To: a@x.org, b@x.org" in text
    assert "next step: list them" in text


def test_a_mail_server_that_is_away_is_an_error(mail):
    host, port = mail.server_address
    mail.server_close()
    email = EmailSettings(to=["a@x.org"], sender="dagster@x.org", host=host, port=port, encryption="none")
    with pytest.raises(AlertRefused, match=f"the SMTP server {host}:{port} did not accept the alert"):
        destinations(AlertSettings(email=email))["email"](ALERT)


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("SHOP_HOOK", raising=False)
    with pytest.raises(ConfigError, match="the variable SHOP_HOOK is not set"):
        destinations(AlertSettings(webhook=WebhookSettings(url_variable="SHOP_HOOK")))["webhook"](ALERT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"user": "u"}, "belong together"),
        ({"user": "u", "password_variable": "P", "encryption": "none"}, "not sent without encryption"),
        ({"password": "canary"}, "password"),
    ],
)
def test_mail_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        EmailSettings(to=["a@x.org"], sender="b@x.org", **settings)


# -- a function of the project


YAML = "name: shop\ntopics: [orders]\nalerts: {tell: %s}\n"


def test_a_function_is_named_in_yaml(tmp_path, monkeypatch):
    (tmp_path / "acme_alerts.py").write_text("heard = []\n\ndef page(alert):\n    heard.append(alert)\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = OutboxComponent.resolve_from_yaml(YAML % "acme_alerts.page")
    destinations(settings.alerts)["tell"](ALERT)
    import acme_alerts  # noqa: PLC0415 - written above

    assert acme_alerts.heard == [ALERT]
    heard = []
    destinations(settings.alerts, heard.append)["tell"](ALERT)
    assert (acme_alerts.heard, heard) == ([ALERT], [ALERT]), "a function given in Python takes its place"


@pytest.mark.parametrize("path", ["acme_missing.page", "json.missing", "dagster_harvest.alert_destinations.ssl"])
def test_a_wrong_path_is_an_error_at_load(path):
    with pytest.raises(ConfigError, match=r"alerts\.tell names") as refused:
        outbox_definitions(OutboxComponent.resolve_from_yaml(YAML % path))
    module, _, name = path.rpartition(".")
    assert f"from {module} import {name}" in refused.value.next_step


def test_without_a_destination_alerts_go_to_the_log(caplog):
    assert destinations(OutboxSettings(name="shop", topics=["orders"]).alerts) == {"log": log_alert}
    log_alert(ALERT)
    assert "3 records are parked" in caplog.records[-1].reason
