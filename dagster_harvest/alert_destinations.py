"""The destinations of alerts: a function of the project, Slack, a webhook, e-mail.

Slack, webhook and e-mail need only the standard library. Each request ends within some seconds, because a slow
destination delays the sensor's tick. No error contains an address or a token, since both may be secrets.
"""

import importlib
import json
import os
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from email.message import EmailMessage
from functools import partial
from typing import Any

from dagster_harvest.alert import Alert, Tell, log_alert
from dagster_harvest.alert_settings import AlertSettings, EmailSettings, SlackSettings, WebhookSettings
from harvest_lib.errors import ConfigError, HarvestError

_TIMEOUT_SECONDS = 5.0
_LONGEST_SUBJECT = 120


class AlertRefused(HarvestError):
    """A destination did not accept an alert: follow the next step; the alert is in the log of the sensor's tick."""


def destinations(settings: AlertSettings, tell: Tell | None = None) -> Mapping[str, Tell]:
    """Return the functions that report an alert, keyed by destination. `tell` replaces the function that the settings
    name. Without any destination the log of the code location is the destination. Raises ConfigError if the settings
    name a function that does not exist."""
    found: dict[str, Tell] = {}
    if tell is not None:
        found["tell"] = tell
    elif settings.tell is not None:
        found["tell"] = _imported(settings.tell)
    if settings.slack is not None:
        found["slack"] = partial(_post_to_slack, settings.slack)
    if settings.webhook is not None:
        found["webhook"] = partial(_post_to_webhook, settings.webhook)
    if settings.email is not None:
        found["email"] = partial(_send_email, settings.email)
    return found or {"log": log_alert}


def _imported(path: str) -> Tell:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user's: whatever its import raises
        raise _no_function(path, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise _no_function(path, f"{path} is a {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # a function of the user's has any type


def _no_function(path: str, evidence: str) -> ConfigError:
    module, _, name = path.rpartition(".")
    return ConfigError(
        f"alerts.tell names {path}, which is no function that can be imported: {evidence}",
        field="alerts.tell",
        next_step=f"define `def {name}(alert): ...` in the module {module}, and test it by "
        f"`python -c 'from {module} import {name}'` in the environment of the code location",
    )


def _post_to_slack(slack: SlackSettings, alert: Alert) -> None:
    sign = ":white_check_mark:" if alert.is_recovery else ":rotating_light:"
    body = {"channel": slack.channel, "text": f"{sign} {alert}"}
    token = _secret(slack.token_variable, "alerts.slack.token_variable")
    answer = json.loads(_post(f"{slack.api_url}/chat.postMessage", body, token, "Slack"))
    if not answer.get("ok"):
        raise AlertRefused(
            f"Slack refused the alert: {answer.get('error')}",
            next_step=f"give the bot of {slack.token_variable} the scope chat:write, and invite it to {slack.channel}",
        )


def _post_to_webhook(webhook: WebhookSettings, alert: Alert) -> None:
    url = _secret(webhook.url_variable, "alerts.webhook.url_variable")
    token = _secret(webhook.token_variable, "alerts.webhook.token_variable") if webhook.token_variable else None
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the variable {webhook.url_variable} holds no http or https URL",
            field="alerts.webhook.url_variable",
            next_step=f"export {webhook.url_variable}=https://… where the code location runs",
        )
    _post(url, {**asdict(alert), "is_recovery": alert.is_recovery}, token, "the webhook")


def _post(url: str, body: Mapping[str, Any], token: str | None, name: str) -> bytes:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - http only
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            content: bytes = answer.read()
            return content
    except OSError as error:  # HTTPError and URLError are OSErrors
        status = f"HTTP status {error.code}" if isinstance(error, urllib.error.HTTPError) else _kind(error)
        raise AlertRefused(
            f"{name} did not accept the alert", evidence=status, next_step="test the address from the code location"
        ) from None


def _kind(error: OSError) -> str:
    reason = getattr(error, "reason", error)
    return type(reason).__name__ if isinstance(reason, BaseException) else type(error).__name__


def _send_email(email: EmailSettings, alert: Alert) -> None:
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"] = alert.text.splitlines()[0][:_LONGEST_SUBJECT]
    message.set_content(str(alert))
    context = ssl.create_default_context()
    try:
        with (
            smtplib.SMTP_SSL(email.host, email.port, timeout=_TIMEOUT_SECONDS, context=context)
            if email.encryption == "tls"
            else smtplib.SMTP(email.host, email.port, timeout=_TIMEOUT_SECONDS)
        ) as server:
            if email.encryption == "starttls":
                server.starttls(context=context)
            if email.user is not None and email.password_variable is not None:
                server.login(email.user, _secret(email.password_variable, "alerts.email.password_variable"))
            server.send_message(message)
    except OSError as error:  # errors of smtplib are OSErrors
        raise AlertRefused(
            f"the SMTP server {email.host}:{email.port} did not accept the alert",
            evidence=type(error).__name__,
            next_step="compare host, port, encryption, user and password with those of the server",
        ) from None


def _secret(variable: str, field: str) -> str:
    if value := os.environ.get(variable):
        return value
    raise ConfigError(
        f"the variable {variable} is not set",
        field=field,
        next_step=f"export {variable} where the code location runs",
    )
