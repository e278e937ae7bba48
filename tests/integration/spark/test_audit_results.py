"""Results of an audit by Spark: its tables, its words and exit code, and pages for operators."""

import json
import socket
import uuid
from dataclasses import asdict

import pytest
from support.audited import KEYS, RECORDS
from support.scraping import parsed, series

from harvest_lib.errors import FOUND_EXIT_CODE, OutboxTableError
from harvest_lib.spark.audit.__main__ import main
from harvest_lib.spark.quality.contracts import AUDIT_SUMMARY
from harvest_lib.spark.quality.expectations import AuditLimits, expect_audit, read_audit

pytestmark = [pytest.mark.full, pytest.mark.spark]


def test_an_audit_of_the_same_id_replaces_the_first(native):
    outbox = native.outbox
    native.deliver()
    log = native.log()
    native.produce(log[0], outbox_id=10**9)
    first = native.audit(audit_id="nightly")
    native.produce(log[0], outbox_id=10**9 + 1)
    second = native.audit(audit_id="nightly")
    assert (first.unknown, second.unknown) == (1, 2)
    assert [row[0] for row in native.findings("unknown")] == ["nightly"] * 2
    assert read_audit(outbox.dsn).to_dict("records") == read_audit(outbox.dsn, "nightly").to_dict("records")
    (row,) = AUDIT_SUMMARY.enforce(read_audit(outbox.dsn)).to_dict("records")
    assert row.pop("at").timestamp() == pytest.approx(second.at.timestamp(), abs=1e-3)
    assert row == {name: value for name, value in asdict(second).items() if name != "at"}
    assert native.findings("staging") == []
    assert native.findings("audited") == [("nightly", '"public"."outbox"', outbox.topic)]


def test_a_summary_that_lacks_columns_is_refused_with_what_to_type(native):
    native.deliver()
    native.audit(audit_id="before")
    native.outbox.connection.execute("ALTER TABLE harvest_audit.summary DROP COLUMN keys")
    with pytest.raises(OutboxTableError, match="lacks keys") as error:
        native.audit(audit_id="after")
    statement = error.value.next_step.split("as its owner: ")[1].split(";")[0]
    native.outbox.connection.execute(statement)
    native.audit(audit_id="after")
    assert native.findings("summary")[0][0] == "after"


def test_findings_are_kept_up_to_a_limit_and_all_are_counted(native, monkeypatch):
    monkeypatch.setattr("harvest_lib.spark.audit.run.MOST_FINDINGS", 5)
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.subscriptions.add("default")
    native.outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    assert native.audit().lost == RECORDS
    assert len(native.findings("lost")) == 5


def test_the_command_prints_and_exits_by_what_it_found(native, capsys, tmp_path):
    native.deliver()
    arguments = ["--dsn", native.outbox.dsn, "--bootstrap-servers", native.servers, "--topic", native.outbox.topic]
    assert main([*arguments, "--audit-id", "nightly"]) == 0
    assert "audit nightly: all is well" in capsys.readouterr().out
    native.produce(native.log()[0], outbox_id=10**9)
    assert main([*arguments, "--json", "--metrics-file", str(tmp_path / "audit.prom")]) == FOUND_EXIT_CODE
    assert json.loads(capsys.readouterr().out)["unknown"] == 1
    found = parsed((tmp_path / "audit.prom").read_text())
    counts = {name: count for (name, _), count in series(found, "harvest_audit_findings").items()}
    assert counts == {"lost": 0, "unknown": 1, "reordered": 0, "unexplained_duplicates": 0, "other_contents": 0}
    assert found["harvest_audit_failed", (native.outbox.topic,)] == 0


def test_the_command_fails_when_no_committed_record_was_found(native, capsys, tmp_path):
    arguments = ["--dsn", native.outbox.dsn, "--bootstrap-servers", native.servers, "--topic", native.outbox.topic]
    assert main([*arguments, "--audit-id", "nightly", "--metrics-file", str(tmp_path / "audit.prom")]) == 10
    assert parsed((tmp_path / "audit.prom").read_text()) == {("harvest_audit_failed", (native.outbox.topic,)): 1}
    said = capsys.readouterr()
    assert "audit nightly: nothing was compared" in said.out
    assert "0 records committed" in said.err
    assert main([*arguments, "--json", "--allow-empty"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_expectations_and_their_pages(native, tmp_path, monkeypatch):
    native.deliver()
    native.audit(audit_id="good")
    called = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **_: called.append(where) or [])
    good = expect_audit(read_audit(native.outbox.dsn, "good"), docs=tmp_path / "good")
    assert good.ok
    assert good.index.is_file()
    log = native.log()
    native.produce(log[0], outbox_id=10**9)
    native.produce(log[0], leader=uuid.uuid4())
    monkeypatch.undo()
    summary = native.audit(audit_id="bad")
    bad = expect_audit(summary, docs=tmp_path / "bad", limits=AuditLimits(duplicates_cross_epoch=0, foreign_messages=0))
    assert [failed.column for failed in bad.failed] == ["unknown", "keys_with_gaps", "duplicates_cross_epoch"]
    assert "seen 1" in str(bad.failed[0])
    assert bad.url == (tmp_path / "bad" / "index.html").as_uri()
    (page,) = (tmp_path / "bad" / "validations").rglob("*.html")
    assert "unknown" in page.read_text()
    assert called == [], "nothing is looked up: nobody is called"
