"""A data source that is quoted and read is what it was, whatever characters its values have."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.config import DataSource
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
keywords = st.sampled_from(["user", "password", "dbname", "host", "application_name", "sslpassword"])
spaces = st.sampled_from(["", " ", "\t", " \n "])


dictionaries = st.dictionaries(keywords, texts).filter(lambda values: "@" not in values.get("host", "")[1:])
"""A host with an @ is a piece of a password, and is refused."""


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def escaped(value: str) -> str:
    return "".join("\\" + character if character.isspace() or character in "'\\" else character for character in value)


@given(dictionaries, spaces, spaces)
def test_quoted_values_come_back(values: dict[str, str], before: str, after: str) -> None:
    text = " ".join(f"{name}{before}={after}{quoted(value)}" for name, value in values.items())
    reported = conninfo_to_dict(DataSource.parse(text).conninfo())
    assert {name: reported.get(name, "") for name in values} == values


@given(dictionaries.filter(lambda values: all(values.values())))
@example({"password": "dbname=postgres"})
def test_escaped_values_come_back(values: dict[str, str]) -> None:
    text = " ".join(f"{name}={escaped(value)}" for name, value in values.items())
    reported = conninfo_to_dict(DataSource.parse(text).conninfo())
    assert {name: reported.get(name, "") for name in values} == values


@given(st.text(max_size=60) | st.text("ab =\\'\n/:@?&%", max_size=30).map("postgres://".__add__))
def test_any_text_is_read_or_refused_as_a_setting(text: str) -> None:
    try:
        source = DataSource.parse(text, lib_pq_defaults=True)
    except ConfigError:
        return
    assert DataSource.parse(source.conninfo()) == source


@given(texts.filter(lambda text: len(text) > 3 and text not in "user=bob dbname=shop" and "*" not in text))
def test_no_password_is_ever_shown(password: str) -> None:
    source = DataSource.parse(f"user=bob dbname=shop password={quoted(password)}")
    bare = str(DataSource.parse("user=bob dbname=shop password='x'"))
    assert str(source) == bare
