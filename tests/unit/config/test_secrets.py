"""A canary in every place that may hold a secret, and every way to show a configuration or to get it wrong."""

import io
import pprint
import traceback
from pathlib import Path

import pytest
from rich.console import Console
from rich.pretty import Pretty

from harvest_lib.config import HarvestConfig, KafkaSettings, Limits, load
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

CANARY = "s3cr3t-canary"

SECRET_SETTINGS = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "some.new.token",
    "some.private.thing",
    "some.new.Credential",
]
DATA_SOURCES = [
    f"host=db user=bob password={CANARY} dbname=shop",
    f"host=db user=bob sslpassword='{CANARY}' options='-c app.key={CANARY}'",
    f"host=db user=bob app.key={CANARY}",
    f"postgres://bob:{CANARY}@db/shop",
    f"postgres://bob:a@{CANARY}@db/shop",
    f"postgres://db/shop?user=bob&password={CANARY}",
]


def every_form(value: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    console.print(value)
    console.print(Pretty(value))
    return "\n".join([str(value), repr(value), f"{value}", pprint.pformat(value), out.getvalue()])


@pytest.mark.parametrize("data_source", DATA_SOURCES)
def test_no_form_of_a_configuration_shows_a_secret(data_source: str) -> None:
    secrets = dict.fromkeys(SECRET_SETTINGS, CANARY) | {"some.url": f"http://me:{CANARY}@proxy/"}
    made = HarvestConfig(
        leader_group_id="group",
        data_source=data_source,
        base_kafka_config={"bootstrap.servers": "broker:1", **secrets},
        producer_kafka_config=secrets,
    )
    forms = [
        every_form(each)
        for each in (
            made,
            made.base_kafka_config,
            made.data_source,
            made.redacted(),
            made.model_dump(),
            made.model_dump(by_alias=True, mode="json"),
            made.model_dump_json(),
            made.model_copy(update={"name": "x"}),
        )
    ]
    for form in forms:
        assert CANARY not in form
        assert "***" in form
    for shown in ("broker:1", "group", "bob"):
        assert shown in forms[0]
    # Clients do get them.
    assert made.base_kafka_config["sasl.password"] == CANARY
    assert made.kafka_settings(for_producer=True) == {"bootstrap.servers": "broker:1", **secrets}
    assert CANARY in made.data_source.conninfo()


def test_a_callable_is_shown_as_what_it_is() -> None:
    assert "<function>" in repr(KafkaSettings({"oauth_cb": lambda _: CANARY}))


def assert_silent(error: BaseException) -> None:
    """Neither the error, nor what it came from, nor a trace of it says the canary."""
    seen: BaseException | None = error
    while seen is not None:
        assert CANARY not in str(seen) + repr(seen) + repr(seen.args) + repr(vars(seen))
        seen = seen.__cause__ or seen.__context__
    assert CANARY not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "values",
    [
        {"data_source": f"host=db password='{CANARY}"},
        {"data_source": [CANARY]},
        {"data_source": CANARY.encode()},
        {"base_kafka_config": {"sasl.password": [CANARY]}},
        {"base_kafka_config": {"sasl.password": {CANARY: CANARY}}},
        {"base_kafka_config": {"sasl.password": CANARY, "group.id": CANARY}},
        {"base_kafka_config": {"sasl.password": CANARY, "acks": CANARY}},
        {"base_kafka_config": {"sasl.password": CANARY, "session.timeout.ms": CANARY}},
        {"base_kafka_config": CANARY},
        {"base_kafka_config": [("sasl.password", CANARY)]},
        {"limits": CANARY},
        {"limits": {"poll_duration_seconds": CANARY}},
        {"limits": {"send_buffer": CANARY}},
        {"leadership": CANARY},
        {"leader_topic": f"{CANARY} {CANARY}"},
        {"outbox_table": f"{CANARY}."},
        {"record_header": CANARY},
        {"session_timeout_seconds": CANARY},
        {"name": [CANARY]},
        {"bogus": CANARY},
    ],
)
def test_no_error_shows_a_value(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        HarvestConfig(**{"leader_group_id": "g", **values})
    assert_silent(caught.value)


def test_an_attempt_to_change_it_shows_no_value() -> None:
    made = HarvestConfig(leader_group_id="g")
    for model, field in ((made, "data_source"), (made.limits, "send_buffer")):
        with pytest.raises(AttributeError, match="frozen") as caught:
            setattr(model, field, CANARY)
        assert CANARY not in str(caught.value)


@pytest.mark.parametrize("model", [HarvestConfig, Limits])
def test_pydantics_own_errors_show_no_value(model: type[HarvestConfig | Limits]) -> None:
    with pytest.raises(ValueError, match="JSON") as caught:
        model.model_validate_json(f'{{"send_buffer": "{CANARY}"')
    assert CANARY not in str(caught.value)


def test_no_error_of_limits_shows_a_value() -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(send_buffer=CANARY)
    assert_silent(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"sasl.password: *{CANARY}",
        f"sasl.password: &{CANARY}",
        f"sasl.password: &{CANARY} x\n    sasl.username: &{CANARY} *{CANARY}\n    - x",
        f"sasl.password: !{CANARY} x",
        f"sasl.password: !!{CANARY}'{CANARY} x",
        f"sasl.password: !<{CANARY}",
        f"sasl.password: !{CANARY}!x y",
        f"sasl.password: %{CANARY}",
        f"sasl.password: @{CANARY}",
        f"sasl.password: `{CANARY}",
        f"sasl.password: '{CANARY}",
        f'sasl.password: "{CANARY}\\q"',
        f"sasl.password: {CANARY}: x",
        f"sasl.password: [{CANARY}",
        f"sasl.password: {{{CANARY}",
        f"sasl.password: {CANARY}\x01",
        f"sasl.password: |{CANARY}",
        f"sasl.password:\n      {CANARY}: {CANARY}",
        f"sasl.password:\n      - {CANARY}",
        f"sasl.password: {CANARY}\n    ? [{CANARY}]\n    : x",
        f"sasl.password: {CANARY}\n    acks: {CANARY}",
        f"sasl.password: {CANARY}\n    sasl.password: {CANARY}",
        f"sasl.password: {CANARY}\n  dataSource: 'password={CANARY} x'",
        f"sasl.password: {CANARY}\n  limits: {{pollDuration: {CANARY}}}",
        f"sasl.password: {CANARY}\nlogging: {{level: {CANARY}}}",
        f"sasl.password: {CANARY}\nlogging: {CANARY}",
    ],
)
def test_no_error_of_a_file_shows_a_value(text: str, tmp_path: Path) -> None:
    file = tmp_path / "reaper.yaml"
    file.write_text(f"harvest:\n  leaderGroupID: g\n  baseKafkaConfig:\n    {text}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert_silent(caught.value)


def test_no_error_of_a_file_that_is_not_text_shows_it(tmp_path: Path) -> None:
    (tmp_path / "reaper.yaml").write_bytes(f"password: {CANARY}\n".encode() + b"\xff")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "reaper.yaml")
    assert_silent(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"HARVEST_BASE_KAFKA_CONFIG": f'{{"sasl.password": "{CANARY}"'},
        {"HARVEST_BASE_KAFKA_CONFIG": f'["{CANARY}"]'},
        {"HARVEST_BASE_KAFKA_CONFIG": f'{{"sasl.password": ["{CANARY}"]}}'},
        {"HARVEST_DSN": f"password={CANARY} x"},
        {"HARVEST_LIMITS__SEND_BUFFER": CANARY},
        {"HARVEST_LIMITS__QUEUE_TIMEOUT_SECONDS": CANARY},
        {"HARVEST_DSN": f"password={CANARY}", "HARVEST_DATA_SOURCE": f"password={CANARY}2"},
    ],
)
def test_no_error_of_variables_shows_them(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        HarvestConfig(leader_group_id="g")
    assert_silent(caught.value)
