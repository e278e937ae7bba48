"""GraphQL over HTTP to a Dagster webserver: one query at a time, and the error that its failure means.

Only `DagsterUnreachable` may be temporary; after this error the caller may try again.
"""

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from harvest_lib.airflow.dagster.endpoint import URL_VARIABLE, DagsterError, DagsterRefused, Endpoint

_REQUEST_SECONDS = 30
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_EVIDENCE = 500


class DagsterUnreachable(DagsterError):
    """Dagster does not answer at present: check its address, and whether the webserver runs."""


class GraphQL:
    """A connection to a Dagster webserver. It reads and sends nothing before the first query."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make a connection. `url` is the webserver's address, without user and password."""
        self.url = endpoint.url
        self._endpoint = endpoint
        self._http: httpx.AsyncClient | None = None

    async def ask(self, query: str, variables: Mapping[str, Any] | None = None) -> Any:
        """Return the `data` of the answer. Raises DagsterUnreachable or DagsterRefused."""
        source = self._endpoint.source
        if self._http is None:
            # In a thread, because reading certificates from files would block the event loop.
            verify = await asyncio.to_thread(self._endpoint.tls)
            self._http = httpx.AsyncClient(headers=self._endpoint.headers, timeout=_REQUEST_SECONDS, verify=verify)
        try:
            response = await self._http.post(
                f"{self.url}/graphql", json={"query": query, "variables": dict(variables or {})}
            )
        except httpx.TransportError as error:
            if next_step := _tls_trouble(error, source):
                raise DagsterRefused(
                    "no encrypted connection to Dagster can be made",
                    evidence=f"{self.url}: {error}",
                    next_step=next_step,
                ) from error
            raise DagsterUnreachable(
                "Dagster does not answer",
                evidence=f"{self.url}: {type(error).__name__} {error}".strip(),
                next_step=f"check {source}, and that dagster-webserver runs there and speaks {self.url.split(':')[0]}",
            ) from error
        if response.status_code in _TRANSIENT:
            raise DagsterUnreachable(
                "Dagster cannot answer",
                evidence=f"{self.url}: HTTP {response.status_code}: {short(_said(response))}",
                next_step="read the log of dagster-webserver",
            )
        answer = _json(response)
        if not response.is_success or "data" not in answer or answer.get("errors"):
            raise DagsterRefused(
                "Dagster refuses the request",
                evidence=f"{self.url}: HTTP {response.status_code}: {short(_said(response))}",
                next_step=_after_refusal(response, source),
            )
        return answer["data"]

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()

    def __repr__(self) -> str:
        """Show the address, without user and password."""
        return f"{type(self).__name__}({self.url!r})"


def _tls_trouble(error: BaseException, source: str) -> str:
    """Return the next step after a TLS failure, an empty text after any other failure. No retry can cure a TLS
    failure."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            where = "an Airflow connection dagster_default" if source == URL_VARIABLE else source
            return f"if that certificate is right, name its CA by ca_file in {where}"
        if isinstance(cause, ssl.SSLError):
            return f"check the scheme in {source}: the server may speak http, not https"
        cause = cause.__cause__ or cause.__context__
    return ""


def _after_refusal(response: httpx.Response, source: str) -> str:
    if response.status_code in {401, 403}:
        return f"check the credentials in {source}"
    if response.is_redirect:
        return f"the address in {source} leads to another: check its scheme, host and path"
    return f"check scheme, port and path in {source}, and that a dagster-webserver of version 1.13 is there"


def _said(response: httpx.Response) -> str:
    """Return the messages of an answer; of an exception in Dagster, which GraphQL hides, its own."""
    errors = _json(response).get("errors") or ()
    found = ((error.get("extensions") or {}).get("errorInfo") or error for error in errors)
    return "; ".join(str(error["message"]) for error in found) or response.text


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def short(text: str) -> str:
    """Return a foreign text in one line, cut where it is too long for a log."""
    words = " ".join(text.split())
    return words if len(words) <= _EVIDENCE else f"{words[:_EVIDENCE]}…"
