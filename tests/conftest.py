"""Fixtures of every test: the servers, and a database, topics and names of its own."""

import logging
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support import hypothesis_profiles, least, record, tiers  # noqa: F401 - the first puts its profile in use
from support.compiled import pytest_collection  # noqa: F401 - pytest's hook
from support.databases import Databases
from support.least_modules import reason
from support.limits import pytest_exception_interact  # noqa: F401 - pytest's hook
from support.nothing_ran import pytest_sessionfinish  # noqa: F401 - pytest's hook
from support.outbox import Outbox
from support.quiet import end_clients, keep_py4j_quiet
from support.servers import started
from support.session_folder import session_folder
from support.tiers import pytest_runtest_setup  # noqa: F401 - pytest's hook
from support.waiting import eventually

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state

# Tests make and drop databases, roles and topics: on servers of their own, never on those that a shell names.
for _name in ("HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS"):
    os.environ.pop(_name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier` and `--record`."""
    tiers.pytest_addoption(parser)
    record.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Record the session, if that is asked for."""
    record.register(config)
    keep_py4j_quiet()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of other tiers: most of a worker's start is imports."""
    return tiers.ignores(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tiers that are not selected, and what does not run under least privilege, if that is asked for."""
    tiers.select(config, items)
    if least.LIMITED:
        exempt = [item for item in items if reason(item.path, getattr(item, "originalname", item.name))]
        config.hook.pytest_deselected(items=exempt)
        items[:] = [item for item in items if item not in exempt]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give signals back what they did: a command that ran in this process ignores them, and so would its children."""
    before = {each: signal.getsignal(each) for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture(autouse=True)
def _log_handlers() -> Iterator[None]:
    """Take away the handlers that a command or a library in this process leaves: their streams are closed."""
    before = {name: [*logging.getLogger(name).handlers] for name in ("", "harvest_lib")}
    yield
    for name, known in before.items():
        logger = logging.getLogger(name)
        for handler in [each for each in logger.handlers if type(each).__name__ in {"StreamHandler", "LogWriter"}]:
            if handler not in known:
                logger.removeHandler(handler)


Unique = Callable[[str], str]
MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def parts() -> Path:
    """The folder with what is brought once: jars and Java."""
    return default_state()


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, parts: Path) -> Iterator[Stack]:
    """Postgres and Kafka for the whole session, with no data of earlier sessions."""
    with ExitStack() as held:
        state = held.enter_context(session_folder(request.session, parts, "test-stack"))
        made = held.enter_context(started(Stack(state, fresh=True, durable=False, parts=parts, acls=least.LIMITED)))
        held.enter_context(least.limiting(made))
        yield made
        end_clients()


@pytest.fixture(scope="session")
def bootstrap_servers(stack: Stack) -> str:
    """Addresses for Kafka clients."""
    return stack.bootstrap_servers


@pytest.fixture(scope="session")
def admin(bootstrap_servers: str) -> AdminClient:
    """A Kafka admin client."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


@pytest.fixture(autouse=True)
def _servers(request: pytest.FixtureRequest) -> None:
    """Bring servers of the session back that something killed or froze: it costs one test."""
    if "stack" in request.fixturenames:
        request.getfixturevalue("stack").mend()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Unique:
    """Make names that no other test has: `unique("orders")`."""
    test = re.sub(r"[^a-z0-9]+", "_", request.node.name.lower()).strip("_")[:30]

    def name(purpose: str = "test") -> str:
        return f"{purpose}_{test}_{uuid.uuid4().hex[:8]}"

    return name


@pytest.fixture
def group_id(unique: Unique) -> str:
    """A consumer group of this test's own."""
    return unique("group")


@pytest.fixture(scope="session")
def databases(stack: Stack) -> Databases:
    """The pool of empty databases."""
    return Databases(lambda: stack.dsn)


@pytest.fixture
def dsn(stack: Stack, databases: Databases, unique: Unique) -> Iterator[str]:
    """A connection string for an empty database of this test's own, gone with its connections afterwards."""
    with databases.database(unique("db")[:63], stack.mend) as made:
        yield made


@pytest.fixture
def make_topic(admin: AdminClient, unique: Unique) -> Iterator[MakeTopic]:
    """Make a topic of this test's own: `make_topic(partitions=3, **{"cleanup.policy": "compact"})` returns its name.

    It goes with the test: the large values of all tests together would fill a small disk.
    """
    made: list[str] = []

    def make(partitions: int = 1, name: str = "", **config: object) -> str:
        topic = name or unique("topic")
        settings = {setting: str(value) for setting, value in config.items()}
        for future in admin.create_topics([NewTopic(topic, partitions, config=settings)]).values():
            future.result(60)
        made.append(topic)

        def led() -> bool:
            found = admin.list_topics(topic, timeout=60).topics[topic].partitions
            return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())

        eventually(led, f"topic {topic} has a leader for each partition")
        return topic

    yield make
    if made:
        for future in admin.delete_topics(made).values():
            future.exception(60)  # a test may have deleted it


@pytest.fixture
def outbox(dsn: str, make_topic: MakeTopic) -> Iterator[Outbox]:
    """An empty outbox table, and a topic of four partitions its records go to."""
    made = Outbox(dsn, make_topic(partitions=4))
    yield made
    made.close()
