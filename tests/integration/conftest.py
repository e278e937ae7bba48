"""Fixtures of several modules: for the commands, a configuration file; for the jobs, Spark and what it works on."""

import os
from contextlib import ExitStack

import pytest
from support import commands, least
from support.audited import Audited, Purged
from support.counted import Counted
from support.encoded import databases
from support.least_modules import IN_POSTGRES_ALONE, module_of
from support.native import Native
from support.outbox_format import hundred_orders
from support.outbox_source import without_password
from support.pipeline_ends import PostgresSource, own_database, readers
from support.pooler import pooler
from support.quiet import end_clients
from support.secured import Secured
from support.servers import started
from support.session_folder import session_folder
from support.sink import ORDERS, Database
from support.spark import jars_named, java_named, session
from support.subscribed import Subscribed

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve
from harvest_lib.local_stack.stack import Stack
from harvest_lib.local_stack.state import default_state
from harvest_lib.spark.data_source import register

REAPER = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: {servers}
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 60000
  leaderTopic: {group}.neli
  leaderGroupID: {group}
  dataSource: {dsn}
  delivery: barrier
  leadership: solo
  outboxTable: outbox
  limits:
    minPollInterval: 100ms
    heartbeatTimeout: 5s
    maxInFlightRecords: 1000
    minMetricsInterval: 5s
    sendConcurrency: 4
    sendBuffer: 10
logging:
  level: Info
"""


@pytest.fixture
def pooled(dsn):
    """Start a pooler in a mode and return how to connect to it; skipped where there is none on the machine."""
    with pooler(dsn) as start:
        yield start


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}


@pytest.fixture(autouse=least.LIMITED)
def limited(request, stack):
    """Under least privilege: no harvester may do more than it has to, nor what another test's may."""
    with least.watched(Harvest, in_kafka=module_of(request.path) not in IN_POSTGRES_ALONE):
        yield
    least.end_of_test()


@pytest.fixture(autouse=least.LIMITED, scope="module")
def harvesters(request):
    """Under least privilege: a module in which no harvester runs is not one that says anything of it."""
    before = least.SESSION.harvesters
    yield
    assert least.SESSION.harvesters > before or request.config.getoption("keyword"), "no harvester has run"


@pytest.fixture
def allowed(environment):
    """Return the environment in which a command is run, by its arguments."""

    def command(*arguments, **variables):
        given = {**environment, **variables}
        return {**given, **least.variables(arguments, given)}

    return command


@pytest.fixture
def harvest(allowed):
    """Run a command; `alone=True` gives it a process of its own, where signals or memory are the subject."""

    def command(*arguments, alone=False, **variables):
        return commands.run(arguments, allowed(*arguments, **variables), alone=alone or least.LIMITED)

    return command


@pytest.fixture
def reaper(tmp_path, dsn, bootstrap_servers, group_id):
    file = tmp_path / "reaper.yaml"
    file.write_text(REAPER.format(servers=bootstrap_servers, group=group_id, dsn=dsn))
    return file


@pytest.fixture
def elected(reaper):
    """The same file, of a harvester whose leader Kafka elects."""
    reaper.write_text(reaper.read_text().replace("leadership: solo", "leadership: neli"))
    return reaper


@pytest.fixture(scope="session")
def breakable_stack(request, parts):
    """A Postgres and a Kafka that a test may kill or freeze: those of the session serve everybody else."""
    with ExitStack() as held:
        state = held.enter_context(session_folder(request.session, parts, "test-breakable"))
        made = held.enter_context(started(Stack(state, fresh=True, durable=False, parts=parts, acls=least.LIMITED)))
        held.enter_context(least.limiting(made))
        yield made


@pytest.fixture(scope="session")
def secure_stack(request, parts):
    """A secured Postgres and Kafka for the whole session."""
    with ExitStack() as held:
        state = held.enter_context(session_folder(request.session, parts, "test-secure"))
        yield held.enter_context(started(Stack(state, fresh=True, durable=False, parts=parts, secure=True)))
        end_clients()  # before their brokers go


@pytest.fixture
def secured(secure_stack, unique):
    """A database of the test's own on the secured stack, and a name that its topics and groups begin with."""
    made = Secured(secure_stack, unique("s")[:63])
    yield made
    made.close()


@pytest.fixture(scope="module")
def jdbc_jar():
    """The JDBC driver, for a Spark of the test's own; the environment names its Java."""
    state = default_state()
    with java_named():
        (jar,) = resolve(POSTGRES_JDBC, state)
        yield jar


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture
def counted(dsn, bootstrap_servers, make_topic):
    """Shards that count a topic's messages."""
    made = Counted(dsn, {"bootstrap.servers": bootstrap_servers}, make_topic())
    yield made
    made.close()


@pytest.fixture(scope="module")
def followed_database(stack):
    """A database of the module's own: who follows it waits for all transactions in it."""
    with own_database(stack) as made:
        yield made


@pytest.fixture
def followed(followed_database, unique):
    """A table that a pipeline copies and follows."""
    made = PostgresSource(followed_database, unique)
    yield made
    made.close()


@pytest.fixture
def source(followed):
    return followed


@pytest.fixture
def reader(source):
    """Makes readers of the module's `source`."""
    with readers(source) as make:
        yield make


@pytest.fixture
def database(dsn):
    """An empty outbox of goharvest's layout."""
    made = Database(dsn)
    yield made
    made.connection.close()


@pytest.fixture
def orders(database):
    """The same, with a business table."""
    database.connection.execute(ORDERS)
    return database


@pytest.fixture
def frame(spark):
    return hundred_orders(spark)


@pytest.fixture
def make_outbox(dsn, spark, tmp_path):
    """Make native outboxes for the format `outbox` to read: their DSN has no password."""
    register(spark)
    made = []

    def create(**settings):
        made.append(Native(without_password(dsn, tmp_path), **settings))
        return made[-1]

    yield create
    for each in made:
        each.connection.close()


@pytest.fixture
def native(spark, dsn, make_topic, bootstrap_servers, group_id):
    """An outbox to be audited, whose rows stay."""
    outbox = Subscribed(dsn, make_topic(partitions=4), bootstrap_servers, group_id)
    with jars_named():
        yield Audited(outbox, bootstrap_servers)
    outbox.close()


@pytest.fixture
def purged(spark, outbox, bootstrap_servers, group_id):
    """An outbox to be audited, whose rows are purged."""
    with jars_named():
        yield Purged(outbox, bootstrap_servers, group_id)


@pytest.fixture
def encoded(stack, unique):
    """Make a database of an encoding, and return how to connect to it."""
    with databases(stack.dsn, unique) as make:
        yield make
