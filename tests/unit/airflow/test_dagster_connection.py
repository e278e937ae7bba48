"""Address and credentials of Dagster: from a connection's fields to what is sent, and the error for each mistake.

Against real HTTP and HTTPS servers. That Airflow hands over these fields is in tests/integration/airflow.
"""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import trustme
from support.dagster_stub import dagster_stub

from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import DagsterRefused, from_connection, from_url
from harvest_lib.airflow.dagster.graphql import DagsterUnreachable
from harvest_lib.airflow.provider import get_provider_info

pytestmark = pytest.mark.quick

CANARY = "canary-8c41"


@pytest.fixture
def dagster():
    with dagster_stub() as stub:
        yield stub


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def encrypted(authority):
    with dagster_stub(authority.issue_cert("127.0.0.1")) as stub:
        yield stub


def fields(url="http://dagster.example.com", *, login=None, password=None, extra=None, **changes):
    scheme, _, rest = url.partition("://")
    host, _, port = rest.partition(":")
    given = {"schema": scheme, "host": host, "port": int(port) if port else None, "login": login, "password": password}
    text = json.dumps(extra) if isinstance(extra, dict) else extra
    return SimpleNamespace(**{**given, "extra": text, **changes})


def endpoint(*arguments, **changes):
    return from_connection("shop", fields(*arguments, **changes))


def version(asked):
    async def ask():
        async with DagsterClient(asked) as client:
            return await client.version()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (fields("https://dagster.example.com"), "https://dagster.example.com"),
        (fields("http://dagster:3000", schema=None), "http://dagster:3000"),
        (fields("https://shop.dagster.cloud", extra={"path": "/prod/"}), "https://shop.dagster.cloud/prod"),
        (fields(schema="HTTP", host="::1", port=3000), "http://[::1]:3000"),
    ],
    ids=["https", "http unless said", "a deployment of Dagster+", "an address with colons"],
)
def test_the_address_is_made_of_the_fields(given, url):
    assert from_connection("shop", given).url == url


@pytest.mark.parametrize(
    ("header", "given"),
    [
        (("Authorization", "Basic dXNlcjpwOndk"), {"login": "user", "password": "p:wd"}),
        (("Authorization", f"Bearer {CANARY}"), {"extra": {"token": CANARY}}),
        (("Dagster-Cloud-Api-Token", CANARY), {"extra": {"token": CANARY, "token_header": "Dagster-Cloud-Api-Token"}}),
    ],
    ids=["login", "bearer", "Dagster+"],
)
def test_credentials_are_sent_as_dagster_wants_them(header, given, dagster):
    dagster.header = header
    assert version(endpoint(dagster.url, **given)) == "1.13.0"
    with pytest.raises(DagsterRefused, match="401") as raised:
        version(endpoint(dagster.url))
    assert raised.value.next_step == "check the credentials in the Airflow connection shop"


@pytest.mark.parametrize(
    ("given", "evidence"),
    [
        (fields(schema="ftp"), "neither http nor https"),
        (fields(host=""), "no host"),
        (fields(host=f"https://user:{CANARY}@dagster"), "more than a name"),
        (fields(host="dagster/prod"), "more than a name"),
        (fields(extra=f"token={CANARY}"), "no JSON"),
        (fields(extra=f'["{CANARY}"]'), "no JSON"),
        (fields(extra={"tokn": CANARY}), "has tokn"),
        (fields(extra={"token": f"{CANARY}\nX-Other: 1"}), "token holds"),
        (fields(extra={"token": f"{CANARY}é"}), "token holds"),
        (fields(extra={"token": CANARY, "token_header": "a b"}), "no name of a header"),
        (fields(login="user", password=CANARY, extra={"token": CANARY}), "both a login and a token"),
        (fields(extra={"verify": "/etc/ca.pem"}), "neither true nor false"),
    ],
)
def test_what_makes_no_sense_is_refused_without_showing_a_secret(given, evidence):
    with pytest.raises(DagsterRefused, match="the Airflow connection shop") as raised:
        from_connection("shop", given)
    assert evidence in raised.value.evidence
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://host", f"http://{CANARY}:x:y"])
def test_without_connection_and_address_both_are_named(url):
    with pytest.raises(DagsterRefused) as raised:
        from_url(url)
    assert "DAGSTER_URL" in raised.value.evidence
    assert "dagster_default" in raised.value.evidence
    assert CANARY not in str(raised.value)


def test_an_endpoint_shows_no_secret():
    for made in (endpoint(extra={"token": CANARY}), from_url(f"http://user:{CANARY}@dagster:3000")):
        assert CANARY not in f"{made!r} {DagsterClient(made)!r}"


def test_a_certificate_of_ones_own_is_trusted_when_its_ca_is_named(encrypted, authority, tmp_path):
    for unchecked in (
        from_url(encrypted.url),
        endpoint(encrypted.url),
        endpoint(encrypted.url, extra={"verify": "true"}),
    ):
        with pytest.raises(DagsterRefused, match="CERTIFICATE_VERIFY_FAILED") as raised:
            version(unchecked)
        assert "ca_file in " in raised.value.next_step
        assert "onnection" in raised.value.next_step, "DAGSTER_URL has no place for it"
    file = tmp_path / "ca.pem"
    with pytest.raises(DagsterRefused, match="No such file") as raised:
        version(endpoint(encrypted.url, extra={"ca_file": str(file)}))
    file.write_text("nothing")
    with pytest.raises(DagsterRefused, match=str(file)):
        version(endpoint(encrypted.url, extra={"ca_file": str(file)}))
    authority.cert_pem.write_to_path(file)
    assert version(endpoint(encrypted.url, extra={"ca_file": str(file)})) == "1.13.0"
    assert version(endpoint(encrypted.url, extra={"verify": False})) == "1.13.0"


def test_the_wrong_scheme_is_suspected(dagster, encrypted):
    with pytest.raises(DagsterRefused) as raised:
        version(endpoint(dagster.url.replace("http:", "https:")))
    assert "may speak http, not https" in raised.value.next_step
    with pytest.raises(DagsterUnreachable) as raised:
        version(endpoint(encrypted.url.replace("https:", "http:")))
    assert "speaks http" in raised.value.next_step


def test_the_form_has_a_field_for_all_that_extra_takes():
    info = get_provider_info()
    schema = Path(find_spec("airflow").origin).parent / "provider_info.schema.json"
    jsonschema.validate(info, json.loads(schema.read_text()))
    (kind,) = [each for each in info["connection-types"] if each["connection-type"] == "dagster"]
    with pytest.raises(DagsterRefused) as raised:
        endpoint(extra={"no_such": 1})
    assert raised.value.next_step == f"extra takes {', '.join(kind['conn-fields'])}"
    assert kind["conn-fields"]["token"]["schema"]["format"] == "password"
