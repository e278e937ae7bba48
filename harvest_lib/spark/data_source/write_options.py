"""The options of `df.write.format("outbox")` and `df.writeStream.format("outbox")`.

Option names are case-insensitive in Spark. So names of headers, which are case-sensitive, are written in an option's
value.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from harvest_lib.conninfo import has_secret
from harvest_lib.errors import ConfigError, HarvestError
from harvest_lib.spark.data_source.option_names import near
from harvest_lib.spark.data_source.read_options import DSN_VARIABLE, dsn_of
from harvest_lib.spark.sink.database import dsn_parts
from harvest_lib.spark.sink.records import BatchId, Fixed, HeaderSource, Records, one_or_several

OPTIONS: Mapping[str, str] = {
    "dsn": f"libpq conninfo or URL, without a password (default: ${DSN_VARIABLE} of the driver)",
    "password": "the password, which Spark hides (default: PGPASSWORD or a password file of the driver)",
    "outbox": "the outbox table (default: outbox)",
    "table": "the business table that takes the rows too; must exist (default: none)",
    "batchColumn": "a column of that table that takes the batch's id",
    "topic": "Kafka topic of the records",
    "topicColumn": "instead of topic: the column with each record's topic",
    "key": "columns of the key, commas between them; their texts are joined by a colon",
    "value": "a column as it is, or several as a JSON object (default: all columns)",
    "orderBy": "columns that order the records (default: as they stand)",
    "headers": 'JSON object of headers from columns: {"event-id": "order_id"}',
    "fixedHeaders": 'JSON object of headers that are always the same: {"event-type": "order-placed"}',
    "headersColumn": "a column of further headers: map<string,string>, or array<struct<key,value>>",
    "createTimeColumn": "a column with the records' times (default: the time of the write)",
    "batchHeader": "name of a header that takes the batch's id",
    "stream": "a stream: the name that its micro-batches have in the ledger",
    "batchId": "a batch: a name of its contents; the same id is never promoted twice",
    "allowEmpty": "a batch: true if a frame without rows is no error",
    "dryRun": "true: check all, show the plan, write nothing",
}
"""Every option of writing, with its meaning."""

_OF_SPARK = ("checkpointlocation", "queryname")
_OF_A_COMMAND = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, checked as far as they can be without a server. `name` is the name of the stream, or the
    id of the batch."""

    dsn: str
    password: str | None = field(repr=False)
    outbox: str
    table: str | None
    batch_column: str | None
    records: Records
    name: str
    allow_empty: bool
    dry_run: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> "WriteOptions":
        """Read Spark's options. Raises ConfigError."""
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given, streaming=streaming)
        dsn = dsn_of(given)
        for name in ("key",) if given.get("topiccolumn") else ("topic", "key"):
            if not given.get(name):
                raise ConfigError(f"the option {name} is missing", field=name, next_step=OPTIONS[name])
        value = _columns(given, "value")
        return cls(
            dsn=dsn,
            password=given.get("password"),
            outbox=given.get("outbox", "outbox"),
            table=given.get("table"),
            batch_column=given.get("batchcolumn"),
            records=Records(
                topic=given.get("topic") or None,
                topic_column=given.get("topiccolumn") or None,
                headers_column=given.get("headerscolumn") or None,
                create_time_column=given.get("createtimecolumn") or None,
                key=one_or_several(_columns(given, "key")),
                value=one_or_several(value) or None,
                headers=_headers(given),
                order_by=_columns(given, "orderBy"),
            ),
            name=_name(given, streaming=streaming),
            allow_empty=_is_true(given, "allowEmpty"),
            dry_run=_is_true(given, "dryRun"),
        )

    def conninfo(self) -> str:
        """Return the connection string of the driver."""
        return make_conninfo(self.dsn, password=self.password) if self.password else self.dsn


def conninfo_of(connection: psycopg.Connection, dsn: str) -> str:
    """Return the connection string for tasks, with all values from the driver's environment and password file."""
    info = connection.info
    found = {"host": info.host, "port": info.port, "dbname": info.dbname, "user": info.user}
    parts: dict[str, Any] = found | {"password": info.password or None} | dsn_parts(dsn)
    return make_conninfo(**parts)


@contextmanager
def options_named() -> Iterator[None]:
    """Replace the command's option names in errors, such as `--order-by`, by the data source's, such as `orderBy`."""
    try:
        yield
    except HarvestError as error:
        error.args = (_OF_A_COMMAND.sub(_option, str(error)),)
        raise


def _option(found: re.Match[str]) -> str:
    first, *more = found.group(1).split("-")
    name = first + "".join(map(str.capitalize, more))
    return name if name in OPTIONS or name == "header" else found.group()  # an option of `harvest`


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        if name not in known and name not in _OF_SPARK:
            meant = near(name, known)
            raise ConfigError(
                f"there is no option {name!r}",
                field=name,
                next_step=f"write {meant}" if meant else f"use {', '.join(OPTIONS)}",
            )
    for name in ("batchId", "allowEmpty") if streaming else ("stream",):
        if name.lower() in given:
            kind, other = ("stream", "stream") if streaming else ("batch", "batchId")
            raise ConfigError(
                f"a {kind} has no option {name}", field=name, next_step=f"leave it out; name it by {other}"
            )


def _name(given: Mapping[str, str], *, streaming: bool) -> str:
    option = "stream" if streaming else "batchId"
    name = given.get(option.lower(), "")
    if name and "\0" not in name:
        return name
    if streaming:
        raise ConfigError(
            "the stream has no name",
            field=option,
            next_step='name it: .option("stream", "orders"). Its micro-batches are known in the ledger by that, and '
            "no other query may have it",
        )
    raise ConfigError(
        "the batch has no id",
        field=option,
        next_step='name what is in it: .option("batchId", "orders-2026-11-21"). The same id is never promoted twice',
    )


def without_password(dsn: str) -> str:
    """Return the DSN unchanged. Raises ConfigError for a DSN that holds a secret, or cannot be read."""
    dsn_parts(dsn)
    if has_secret(dsn):
        raise ConfigError(
            "the DSN holds a password, which Spark would show in its plans and pages",
            field="dsn",
            next_step="give it by the option password, which Spark hides, by PGPASSWORD or in a password file; of "
            "a key with a passphrase, name a copy without",
        )
    return dsn


def _columns(given: Mapping[str, str], option: str) -> list[str]:
    text = given.get(option.lower(), "").strip()
    if not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    columns: list[str] = _json(text, option, list)
    return columns


def _headers(given: Mapping[str, str]) -> dict[str, HeaderSource]:
    headers: dict[str, HeaderSource] = dict(_json(given.get("headers", "{}"), "headers", dict))
    headers |= {
        name: Fixed(text) for name, text in _json(given.get("fixedheaders", "{}"), "fixedHeaders", dict).items()
    }
    return headers | ({given["batchheader"]: BatchId()} if given.get("batchheader") else {})


def _json(text: str, option: str, kind: type[list[str]] | type[dict[str, str]]) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kind) or not all(
        isinstance(each, str) for each in (found.values() if isinstance(found, dict) else found)
    ):
        what = "object" if kind is dict else "list"
        raise ConfigError(f"{text!r} is not a JSON {what} of texts", field=option, next_step=OPTIONS[option])
    return found


def _is_true(given: Mapping[str, str], option: str) -> bool:
    text = given.get(option.lower(), "false").lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{text!r} is neither true nor false", field=option, next_step="write true or false")
    return text == "true"
