"""The pages for new users, typed literally and in order, against servers that know nothing else."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.outbox import read_topic
from support.session_folder import session_folder
from support.waiting import eventually
from support.walkthrough import Walkthrough, blocks, tools

from harvest_lib.local_stack.stack import Stack

pytestmark = pytest.mark.full

ROLES = ("shop_owner", "shop_harvester", "shop_app", "shop_auditor", "harvester")
PASSWORD = "typed-nowhere-5e"


@pytest.fixture(scope="module")
def servers(request, parts):
    """A Postgres and a Kafka in which nobody has done anything."""
    with ExitStack() as held:
        state = held.enter_context(session_folder(request.session, parts, "test-newcomer"))
        yield held.enter_context(Stack(state, fresh=True, durable=False, parts=parts))


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    return tools(tmp_path_factory.mktemp("tools") / "bin")


@pytest.fixture
def newcomer(servers, bin_folder, tmp_path):
    """Somebody in an empty folder, whose addresses are those of the servers; afterwards there is no trace."""
    given = conninfo_to_dict(servers.dsn)
    addresses = {
        "host=db.example.com": f"host={given['host']} port={given['port']}",
        "sslmode=require": "sslmode=disable",
        "kafka.example.com:9092": servers.kafka.bootstrap_servers,
    }
    shop = {"host": given["host"], "port": given["port"], "dbname": "shop", "sslmode": "disable"}
    typed = Walkthrough(
        tmp_path,
        addresses,
        bin_folder,
        SHOP_DSN=make_conninfo(**shop, user="shop_app"),
        SHOP_URL=f"postgresql+psycopg://shop_app@{given['host']}:{given['port']}/shop",
        OWNER_URL=f"postgresql+psycopg://shop_owner@{given['host']}:{given['port']}/shop",
    )
    typed.passwords(postgres=given["password"], **dict.fromkeys(ROLES, PASSWORD))
    yield typed
    try:
        typed.close()
    finally:
        admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap_servers})
        made = [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]
        for future in admin.delete_topics(made).values() if made else ():
            future.result(60)
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
            for role in ROLES:
                connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


def give_passwords(servers, *roles):
    """Set the passwords, which the page leaves to psql's prompt."""
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        for role in roles:
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(PASSWORD)))


def shop_with_roles(servers, newcomer):
    """Do the first two steps of the quickstart."""
    first, second, *_ = blocks("docs/quickstart.md")
    newcomer.type(first)
    give_passwords(servers, "shop_owner", "shop_harvester", "shop_app", "shop_auditor")
    newcomer.type(second)


def keys_of(newcomer):
    with psycopg.connect(
        newcomer.environment["SHOP_DSN"].replace("shop_app", "shop_owner"), password=PASSWORD
    ) as found:
        return [row[0] for row in found.execute("SELECT kafka_key FROM outbox ORDER BY id")]


def test_the_quickstart_of_the_readme(servers, newcomer):
    """One role that is everything, as the README says."""
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE harvester LOGIN")
        connection.execute("CREATE DATABASE shop OWNER harvester")
    give_passwords(servers, "harvester")
    newcomer.environment["SHOP_DSN"] = newcomer.environment["SHOP_DSN"].replace("shop_app", "harvester")
    first, *typed = blocks("README.md", under="## Start")
    assert first.text.splitlines() == ['$ pip install ".[local]"', "$ harvest try"], "see test_try"
    assert [each.language for each in typed] == ["yaml", "sh", "sql", "python", "sh"]
    for block in typed:
        if block.language == "sql":
            with psycopg.connect(newcomer.environment["SHOP_DSN"], password=PASSWORD, autocommit=True) as connection:
                connection.execute(block.text.encode())
        else:
            newcomer.type(block)
        if block.language in {"sql", "python"}:
            count = 1 + (block.language == "python")
            eventually(lambda count=count: len(arrived(servers, "orders")) == count, "delivered")
    values = ['{"state": "placed"}', '{"state":"paid"}']
    assert [record.value for record in arrived(servers, "orders")] == values
    assert "\n".join(values) in newcomer.said[-1], "what a consumer sees"
    assert "lost" in newcomer.said[-1], "the audit's table"


def arrived(servers, topic):
    return read_topic(servers.kafka.bootstrap_servers, topic, isolation="read_committed")


def test_the_quickstart_with_separate_roles(servers, newcomer):
    shop_with_roles(servers, newcomer)
    for block in blocks("docs/quickstart.md")[2:]:
        if "harvest audit" in block.text:
            eventually(lambda: len(arrived(servers, "orders")) == 1, "delivered")
        newcomer.type(block)
    assert "0 errors" in "".join(newcomer.said), "of `harvest check`"
    assert "lost" in newcomer.said[-2]
    assert "there are enough segments" in newcomer.said[-1]
    assert "kept: outbox_from_0" in newcomer.said[-1]


OBJECTS = """
SELECT 'relation ' || oid::regclass FROM pg_class WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'type ' || oid::regtype FROM pg_type WHERE typnamespace = 'public'::regnamespace
UNION ALL SELECT 'schema ' || nspname || ' ' || coalesce(nspacl::text, '') FROM pg_namespace
UNION ALL SELECT 'default rights ' || defaclacl::text FROM pg_default_acl
UNION ALL SELECT 'trigger ' || evtname FROM pg_event_trigger
UNION ALL SELECT 'publication ' || pubname FROM pg_publication
UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots
UNION ALL SELECT 'role ' || rolname FROM pg_roles
UNION ALL SELECT 'rights of ' || refobjid::regrole || ' ' || classid::regclass || ' ' || objid FROM pg_shdepend
  WHERE refclassid = 'pg_authid'::regclass AND deptype = 'a' AND classid <> 'pg_database'::regclass
"""


def traces(servers, newcomer):
    """Return what is in the database, in Kafka and among the groups."""
    owner = make_conninfo(newcomer.environment["SHOP_DSN"], user="shop_owner", password=PASSWORD)
    with psycopg.connect(owner) as connection:
        found = {row[0] for row in connection.execute(OBJECTS)}
    admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap_servers})
    found |= {f"topic {name}" for name in admin.list_topics(timeout=60).topics if not name.startswith("__")}
    return found | {f"group {each.group_id}" for each in admin.list_consumer_groups().result(60).valid}


@pytest.mark.timeout(400)  # about 60 s, most of them for Kafka's own commands
def test_uninstalling_leaves_nothing(servers, newcomer):
    """With `leadership: neli`, which has a topic and a group more than the default."""
    roles, tables, configuration, *rest = blocks("docs/quickstart.md")
    init, business = tables.text.split("\n", 1)
    newcomer.type(roles)
    give_passwords(servers, "shop_owner", "shop_harvester", "shop_app", "shop_auditor")
    newcomer.type(replace(tables, text=business))
    ours = ("shop-outbox", "shop_harvester", "shop_auditor")  # an earlier test leaves the group
    clean = {each for each in traces(servers, newcomer) if not any(name in each for name in ours)} | {"topic orders"}
    newcomer.type(replace(tables, text=init))
    newcomer.type(configuration)
    with (newcomer.folder / configuration.file).open("a") as file:
        file.write("  leadership: neli\n")
    for block in rest:
        if "harvest audit" in block.text:
            eventually(lambda: len(arrived(servers, "orders")) == 1, "delivered")
        newcomer.type(block)
    newcomer.close()
    (write,) = (block for block in rest if "COMMIT" in block.text)
    newcomer.type(replace(write, text=write.text.replace("o-1", "o-2")))
    owner = make_conninfo(newcomer.environment["SHOP_DSN"], user="shop_owner", password=PASSWORD)
    with psycopg.connect(owner) as connection:  # as a segment that somebody detached
        connection.execute("CREATE TABLE outbox_from_7 (LIKE outbox)")
    installed = traces(servers, newcomer)
    assert {"relation outbox", "role shop_harvester", "group shop-outbox"} <= installed - clean
    assert {"topic shop-outbox.neli", "topic shop-outbox.default.checkpoint"} <= installed - clean
    for block in blocks("docs/uninstalling.md"):
        if "acls.sh" not in block.text:
            newcomer.type(block)
    assert len(arrived(servers, "orders")) == 2
    eventually(lambda: traces(servers, newcomer) <= clean, "topics are deleted in the background")
    assert traces(servers, newcomer) == clean


@pytest.mark.long  # a start of Java for each resource, twice
@pytest.mark.timeout(400)
def test_uninstalling_removes_the_permissions(secure_stack, bin_folder, tmp_path):
    """As the operator of a Kafka with ACLs."""
    settings = secure_stack.kafka.operator_settings
    admin = AdminClient(settings)
    keys = "".join(Path(settings[f"ssl.{each}.location"]).read_text() for each in ("key", "certificate"))
    (tmp_path / "operator.pem").write_text(keys)
    (tmp_path / "operator.properties").write_text(
        "security.protocol=SSL\nssl.keystore.type=PEM\nssl.truststore.type=PEM\n"
        f"ssl.keystore.location={tmp_path / 'operator.pem'}\nssl.truststore.location={settings['ssl.ca.location']}\n"
    )

    def permissions():
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        return {str(each) for each in admin.describe_acls(everything).result(60)}

    before = permissions()
    operator = Walkthrough(tmp_path, {"--topic orders": "--topic 'shop-*'"}, bin_folder)  # some are denied, then
    (block,) = (each for each in blocks("docs/uninstalling.md") if "acls.sh" in each.text)
    printed, removed = block.text.splitlines()
    servers = settings["bootstrap.servers"]
    (tmp_path / "harvest.yaml").write_text(
        "harvest: {leaderGroupID: shop-outbox, delivery: transactional, leadership: neli, "
        f"baseKafkaConfig: {{bootstrap.servers: {servers}}}}}"
    )
    operator.type(replace(block, text=f"{printed}\nsh -eu acls.sh"))
    assert len(permissions() - before) > 10
    operator.type(replace(block, text=f"{printed}\n{removed}"))
    eventually(lambda: permissions() == before, "they are removed")


def test_every_way_to_write(servers, newcomer):
    """Each program of the page, as a role that may only write."""
    shop_with_roles(servers, newcomer)
    for block in blocks("docs/quickstart.md")[2:5]:
        newcomer.type(block)
    for block in blocks("docs/writing.md"):
        newcomer.type(block)
    keys = ["psycopg", "core", "orm", "django", "asyncpg", "sql", "psycopg", "traced"]
    assert keys_of(newcomer) == keys
    with psycopg.connect(newcomer.environment["SHOP_DSN"], password=PASSWORD) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM orders")} == set(keys)


MANAGE = """\
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""

SETTINGS = """\
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "shop_owner",
    "HOST": "{host}", "PORT": "{port}"}}}}
INSTALLED_APPS = ["shop"]
"""


@pytest.mark.parametrize("tool", ["Alembic", "Django"])
def test_a_migration_creates_the_outbox(servers, newcomer, tool):
    shop_with_roles(servers, newcomer)
    owner = newcomer.environment["SHOP_DSN"].replace("shop_app", "shop_owner")
    with psycopg.connect(owner, password=PASSWORD, autocommit=True) as connection:
        init = connection.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'").fetchone()
        connection.execute("DROP TABLE orders")  # a project's own migrations know it
        connection.execute("DROP TABLE outbox, outbox_subscriptions, outbox_segments, outbox_parked_ids, outbox_parked")
    printed, *_ = blocks("docs/migrations.md")
    newcomer.type(printed)
    if tool == "Django":
        given = conninfo_to_dict(servers.dsn)
        (newcomer.folder / "manage.py").write_text(MANAGE)
        (newcomer.folder / "settings.py").write_text(SETTINGS.format(host=given["host"], port=given["port"]))
        (newcomer.folder / "shop" / "migrations").mkdir(parents=True)
        for package in ("shop", "shop/migrations"):
            (newcomer.folder / package / "__init__.py").touch()
        (newcomer.folder / "outbox.sql").rename(newcomer.folder / "shop" / "migrations" / "outbox.sql")
    for block in blocks("docs/migrations.md", under=f"## {tool}"):
        newcomer.type(block)
    with psycopg.connect(owner, password=PASSWORD, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'").fetchone() == init
    newcomer._run(["bash", "-c", f'HARVEST_DSN="{owner}" harvest init --table outbox'])
    assert "created" not in newcomer.said[-1]
    back = "alembic downgrade base" if tool == "Alembic" else "python manage.py migrate shop zero"
    newcomer._run(["bash", "-c", back])
    with psycopg.connect(owner, password=PASSWORD, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('outbox')").fetchone() == (None,)
