"""Callbacks of Kafka clients that a file names as `module:function`."""

import pytest

from harvest_lib.errors import ConfigError
from harvest_lib.kafka_client import client_settings, refused_setting

pytestmark = pytest.mark.quick


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "tokens_of_company.py").write_text("def token(config):\n    return 'token', 0\n\nANSWER = 42\n")
    (tmp_path / "broken_tokens.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("module")
def test_a_named_function_is_given_to_the_client():
    assert client_settings({"oauth_cb": "tokens_of_company:token"})["oauth_cb"]("") == ("token", 0)
    assert refused_setting({"oauth_cb": "tokens_of_company:token", "bootstrap.servers": "localhost:1"}) == ""


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("named", "cause"),
    [
        ("no_such_module:token", "No module named 'no_such_module'"),
        ("tokens_of_company:no_such_function", "has no attribute 'no_such_function'"),
        ("broken_tokens:token", "No module named 'no_such_package'"),
        ("tokens_of_company:ANSWER", "is no function"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_of_the_configuration(named, cause):
    for use in (client_settings, refused_setting):
        with pytest.raises(ConfigError, match=cause) as raised:
            use({"oauth_cb": named})
        assert raised.value.field == "oauth_cb"
