"""The address and the credentials of a Dagster webserver, from an Airflow connection or from DAGSTER_URL.

Errors name the setting to correct, and never show a value that may be a secret.
"""

import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from harvest_lib.errors import HarvestError

if TYPE_CHECKING:
    from airflow.sdk import Connection

URL_VARIABLE = "DAGSTER_URL"

_HEADER_NAME = re.compile(r"[A-Za-z0-9-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")
_KNOWN_EXTRA = ("token", "token_header", "path", "verify", "ca_file")
_SWITCH = {"": True, "none": True, "true": True, "false": False}


class DagsterError(HarvestError):
    """Dagster could not fulfil a request: check the run, the job or the server named in the message."""


class DagsterRefused(DagsterError):
    """Dagster refuses a request: check credentials, versions and the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A webserver. `url` has no user and no password; `source` names the setting to correct if `url` is wrong.

    `ca_file` names the file of trusted certificates; if it is empty, the system's certificates are trusted. If `verify`
    is false, any certificate is accepted.
    """

    url: str
    source: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool = True
    ca_file: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS context, or False if no certificate is checked. The call reads files, so make it outside the
        thread of an event loop. Raises DagsterRefused if `ca_file` cannot be read."""
        if not self.url.startswith("https:") or not self.verify:
            return False
        if not self.ca_file:
            return httpx.create_ssl_context()
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise DagsterRefused(
                "the file of trusted certificates cannot be read",
                evidence=f"{self.ca_file}: {error.strerror or error}",
                next_step=f"correct ca_file in {self.source}: a PEM file that Airflow's triggerer can read",
            ) from error


def from_url(url: str) -> Endpoint:
    """Return the endpoint for the value of DAGSTER_URL, which may contain user and password. Raises DagsterRefused."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        # The value is not shown: it may hold a password in an unexpected place.
        raise DagsterRefused(
            "it is not known where Dagster is",
            evidence=f"there is no Airflow connection dagster_default, and {URL_VARIABLE}, where Airflow's triggerer "
            "runs, is not set or no web address",
            next_step="add the connection dagster_default of type Dagster, or set the variable to the webserver's "
            "address, such as http://127.0.0.1:3000",
        )
    return Endpoint(
        url=str(parsed.copy_with(username=None, password=None)).rstrip("/"),
        source=URL_VARIABLE,
        headers=_basic(parsed.username, parsed.password) if parsed.userinfo else {},
    )


def from_connection(conn_id: str, fields: "Connection") -> Endpoint:
    """Return the endpoint that an Airflow connection describes. Raises DagsterRefused for an invalid connection."""
    source = f"the Airflow connection {conn_id}"

    def refused(evidence: str, next_step: str) -> DagsterRefused:
        return DagsterRefused(f"{source} does not say how to reach Dagster", evidence=evidence, next_step=next_step)

    scheme, host = (fields.schema or "http").lower(), fields.host or ""
    if scheme not in {"http", "https"}:
        raise refused("its schema is neither http nor https", "correct the schema; Dagster+ has https")
    if not host:
        raise refused("it has no host", "add the webserver's host, such as dagster.example.com")
    if "/" in host or "@" in host:
        raise refused(
            "its host is more than a name",
            "keep the name in host, http or https in schema, the port in port, and the rest in `path` of extra",
        )
    extra = _extra(fields.extra, refused)
    token, header = _text(extra, "token"), _text(extra, "token_header") or "Authorization"
    if token and not _HEADER_VALUE.fullmatch(token):
        raise refused("its token holds blanks or characters that no token has", "copy the token again")
    if not _HEADER_NAME.fullmatch(header):
        raise refused("its token_header is no name of a header", "use Authorization or Dagster-Cloud-Api-Token")
    bearer = header.lower() == "authorization"
    if token and fields.login and bearer:
        raise refused("it has both a login and a token", f"remove one of both, or name another header than {header}")
    headers = _basic(fields.login, fields.password or "") if fields.login else {}
    if token:
        headers[header] = f"Bearer {token}" if bearer else token
    verify = _SWITCH.get(str(extra.get("verify", "")).strip().lower())
    if verify is None:
        raise refused("verify is neither true nor false", "correct it; a file of certificates goes into ca_file")
    path = _text(extra, "path").strip("/")
    try:
        url = str(httpx.URL(scheme=scheme, host=host, port=fields.port, path=f"/{path}")).rstrip("/")
    except httpx.InvalidURL as error:
        raise refused("host, port and path make no web address", "correct them") from error
    return Endpoint(url=url, source=source, headers=headers, verify=verify, ca_file=_text(extra, "ca_file"))


def _extra(text: str | None, refused: Any) -> dict[str, Any]:
    try:
        extra = json.loads(text or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise refused("its extra is no JSON object", f"write it as JSON, with any of {', '.join(_KNOWN_EXTRA)}")
    if unknown := sorted(str(name) for name in extra if name not in _KNOWN_EXTRA):
        raise refused(f"its extra has {', '.join(unknown)}", f"extra takes {', '.join(_KNOWN_EXTRA)}")
    return extra


def _text(extra: Mapping[str, Any], name: str) -> str:
    return str(extra.get(name) or "").strip()


def _basic(login: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()}
