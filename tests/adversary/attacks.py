"""Attacks open to a role that may insert into an outbox, and no more: transactions made by Hypothesis.

An attack is what one session does within one transaction, or beside any. A value that it does not mean to commit
begins with ROLLED_BACK, so that each copy of it in Kafka is found.
"""

import random
from dataclasses import dataclass, replace

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from support.hostile import HEADERS, ILLEGAL, ODD, good

ROLLED_BACK = "rolled back: "
KEYS = 6
"""The keys of the honest writer; the adversary uses them as well."""

MISSING = ["no-such-topic", "No.Such_Topic", "n" * 249]
INTERNAL = ["__consumer_offsets", "__transaction_state"]

SETTINGS = [
    "SET client_encoding = 'LATIN1'",
    "SET client_encoding = 'SQL_ASCII'",
    "SET search_path = pg_temp, public",
    "SET row_security = off",
    "SET synchronous_commit = off",
    "SET session_replication_role = replica",
    "SET standard_conforming_strings = off",
    "SET DateStyle = 'German'",
    "SET timezone = 'Asia/Kathmandu'",
    "SET statement_timeout = 0",
    "SET default_transaction_deferrable = on",
    "SET application_name = 'harvest leader 00000000-0000-0000-0000-000000000000'",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "SET allow_system_table_mods = on",
    "SET log_statement = 'all'",
]

LOCK_NAMES = [
    "harvest subscription default",
    "harvest consumers",
    *(f"harvest {what} {table}" for what in ("ddl", "changes") for table in ('"outbox"', '"public"."outbox"')),
]
"""Of the advisory locks that commands take; `harvest subscription` is one of before."""

LOCKS = [
    "SELECT pg_try_advisory_lock(n) FROM generate_series(0, 99) n",
    "SELECT pg_try_advisory_lock(c.oid::int, 0) FROM pg_class c WHERE relname LIKE 'outbox%'",
    *(f"SELECT pg_try_advisory_lock(hashtextextended('{name}', 0))" for name in LOCK_NAMES),
]

STATEMENTS = [
    "LISTEN outbox",
    "SELECT pg_notify('outbox', repeat('x', 7000)) FROM generate_series(1, 100)",
    "CREATE TEMP TABLE outbox (id bigint)",
    "CREATE TEMP TABLE outbox_subscriptions (LIKE outbox)",
    "CREATE TABLE public.outbox_parked_ids_2 (id bigint)",
    "CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()'",
    "LOCK TABLE public.outbox IN ACCESS EXCLUSIVE MODE NOWAIT",
    "LOCK TABLE public.outbox IN ROW EXCLUSIVE MODE NOWAIT",
    "TRUNCATE public.outbox",
    "DELETE FROM public.outbox",
    "UPDATE public.outbox SET leader_id = NULL",
    "SELECT * FROM public.outbox FOR UPDATE",
    "DROP TABLE public.outbox",
    "ALTER TABLE public.outbox DISABLE TRIGGER ALL",
    "CREATE TRIGGER t AFTER INSERT ON public.outbox EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON INSERT TO public.outbox DO INSTEAD NOTHING",
    "CREATE POLICY p ON public.outbox USING (false)",
    "GRANT ALL ON public.outbox TO PUBLIC",
    "UPDATE public.outbox_subscriptions SET epoch = epoch + 1",
    "DELETE FROM public.outbox_subscriptions",
    "DELETE FROM public.outbox_parked",
    "INSERT INTO public.outbox_subscriptions (subscription, shard, shards, source) VALUES ('default', 7, 8, 'mark')",
    "INSERT INTO public.outbox_parked_ids (subscription, shard, id) VALUES ('default', 0, 1)",
    "SELECT setval(s, 1) FROM pg_get_serial_sequence('public.outbox', 'id') s",
    "SELECT nextval(pg_get_serial_sequence('public.outbox', 'id')) FROM generate_series(1, 5000)",
    "ALTER SEQUENCE public.outbox_id_seq RESTART",
    "SELECT pg_current_xact_id()",
    "SELECT pg_logical_emit_message(true, 'harvest', repeat('x', 10000))",
    "SELECT pg_logical_emit_message(false, '', '')",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename <> current_user",
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename <> current_user",
    *LOCKS,
    "PREPARE TRANSACTION 'harvest'",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM generate_series(1, 100000)",
    "SELECT 1/0",
    "SELECT pg_sleep(0.2)",
]

SUBTRANSACTIONS = """
DO $$BEGIN FOR i IN 1..150 LOOP
  BEGIN
    INSERT INTO public.outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    VALUES (now(), '{topic}', 'key-' || i % 6, CASE WHEN i % 2 = 0 THEN '{value}' ELSE '' END || i, '{{}}', '{{}}');
    IF i % 2 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
  EXCEPTION WHEN raise_exception THEN NULL; END;
END LOOP; END$$"""
"""More of them than the server keeps in memory, half of them undone."""

MANY_TOPICS = """
INSERT INTO public.outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT now(), 'no-' || md5(random()::text), 'key-' || i % 9, 'v', '{}', '{}' FROM generate_series(1, 200) i"""
"""Each of another topic that there is not: all of them have to be asked for."""

FORBIDDEN_COLUMNS = ["id", "transaction_id", "leader_id"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Values of the columns that a writer may fill; headers as lists, or as the SQL text of an array."""

    topic: str
    key: str
    value: str | None = "v"
    names: list | str = ()
    contents: list | str = ()
    created: str = "now"


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Many rows of one statement, whose values are `value_bytes` long."""

    topic: str
    key: str
    records: int
    value_bytes: int


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Rows by COPY."""

    rows: tuple


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Any statement: Postgres takes it or refuses it."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Forbidden:
    """A row that sets a column which is not the writer's."""

    column: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class Undone:
    """Rows behind a savepoint that is rolled back to."""

    rows: tuple


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Steps of one transaction, and how it ends: `commit`, `rollback`, or `disconnect` without a word. It is held open
    for so long before that; `alone` has each step in a transaction of its own."""

    steps: tuple
    end: str = "commit"
    hold_seconds: float = 0.0
    isolation: str = "READ COMMITTED"
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The topics that an adversary names: its own by what they are, and the pool's."""

    own: str
    compacted: str
    tiny: str
    pools: tuple
    honest: tuple = ()
    """Only where Postgres is to refuse them."""
    without: frozenset = frozenset()
    """Kinds of attack that are left out: `pools`, `internal`, `compacted`, `tiny`, `large`, `locks`, `message-id`,
    `prepared`, and `unsendable`, all that Kafka never takes."""

    def statements(self):
        """Return those that are tried."""
        found = [each for each in STATEMENTS if "prepared" not in self.without or not each.startswith("PREPARE")]
        found += [SUBTRANSACTIONS.format(topic=self.own, value=ROLLED_BACK)]
        return found + ([MANY_TOPICS] if "unsendable" not in self.without else [])

    def all(self):
        """Return each that is named."""
        found = [self.own, self.own, self.own, *self.honest, *self.missing()]
        found += [*self.small()]
        found += self.pools if "pools" not in self.without else ()
        return found + (INTERNAL if "internal" not in self.without else [])

    def missing(self):
        """Return those that there are not."""
        return MISSING if "unsendable" not in self.without else []

    def small(self):
        """Return those of its own that do not take everything."""
        return [name for kind, name in (("compacted", self.compacted), ("tiny", self.tiny)) if kind not in self.without]


PARTING = "the last word"


def parting(targets):
    """Return what is left behind for who leads next: records of the pool's own topics that are not the pool's, as far
    as they are taken, and one to know by that they were seen."""
    forged = (
        '{"generation": 1, "number": 1000000000, "position": {}, "delivered": 0, "kept_in": "kafka", "outbox": "x"}'
    )
    pools = targets.pools if "pools" not in targets.without else ()
    rows = [Row(topic=topic, key="default/0", value=value) for topic in pools for value in (forged, "{", None)]
    return Attack(steps=(*rows, Row(topic=targets.own, key=PARTING, value=PARTING)))


def attacks(targets, number, count, *, longest_hold_seconds):
    """Return so many attacks, made by Hypothesis of this seed."""
    keys = st.one_of(st.integers(0, KEYS - 1).map("key-{}".format), st.sampled_from(["", ODD, "k" * 100]))
    topics = st.sampled_from(targets.all())
    sizes = st.sampled_from([0, 1, 500, 2_000, 100_000, 990_000, 1_100_000, 3_000_000])
    names = st.sampled_from(
        [name for name in ("harvest", "message-id", "a", "\x01", "ü" * 40) if name not in targets.without]
    )
    contents = st.one_of(st.none(), st.sampled_from(["", "b", "\x02\x01", "x" * 16, "y" * 30_000]))

    kinds = ["good", "own headers", "topic", "many headers"]
    kinds += ["headers", "illegal", "size"] if "unsendable" not in targets.without else []

    @st.composite
    def row(draw):
        kind = draw(st.sampled_from(kinds))
        topic, key = draw(topics), draw(keys)
        match kind:
            case "good":
                made = draw(good())
                return Row(
                    topic=topic,
                    key=key,
                    value=made.value,
                    names=made.names,
                    contents=made.contents,
                    created=made.created,
                )
            case "own headers":
                pairs = draw(st.lists(st.tuples(names, contents), min_size=1, max_size=4))
                return Row(topic=topic, key=key, names=[n for n, _ in pairs], contents=[c for _, c in pairs])
            case "headers":
                bad_names, bad_contents, _ = draw(st.sampled_from(HEADERS))
                return Row(topic=topic, key=key, names=bad_names, contents=bad_contents)
            case "illegal":
                return Row(topic=draw(st.sampled_from(ILLEGAL)), key=key)
            case "size":
                return Row(topic=topic, key=key, value="v" * draw(sizes))
            case "many headers":
                many = draw(st.sampled_from([100, 3_000, 60_000]))
                return Row(topic=topic, key=key, names=["h"] * many, contents=["c"] * many)
        return Row(topic=topic, key=key, value=draw(st.none() | st.just("")))

    rows = st.lists(row(), min_size=1, max_size=4).map(tuple)
    flood = st.builds(
        Flood,
        topic=st.sampled_from([targets.own, *targets.small(), *targets.missing()]),
        key=keys,
        records=st.integers(10, 300),
        value_bytes=st.sampled_from([0, 20, 1_000]),
    )
    large = st.builds(Flood, topic=st.just(targets.own), key=keys, records=st.just(40), value_bytes=st.just(900_000))
    steps = st.one_of(
        row(),
        row(),
        row(),
        rows.map(lambda found: Copied(rows=found)),
        rows.map(lambda found: Undone(rows=found)),
        st.sampled_from(SETTINGS).map(lambda text: Statement(text=text)),
        st.sampled_from(targets.statements()).map(lambda text: Statement(text=text)),
        st.builds(Forbidden, column=st.sampled_from(FORBIDDEN_COLUMNS), topic=topics),
        flood,
        *((large,) if "large" not in targets.without else ()),
    )
    attack = st.builds(
        Attack,
        steps=st.lists(steps, min_size=1, max_size=6).map(tuple),
        end=st.sampled_from(["commit", "commit", "commit", "rollback", "disconnect"]),
        hold_seconds=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.2, longest_hold_seconds]),
        isolation=st.sampled_from(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]),
        alone=st.booleans(),
    )
    found = []

    @seed(number)
    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None)
    @given(attack)
    def collect(each):
        found.append(_marked(each))

    collect()
    # Each statement once, whatever was drawn: first of all, so that the quickest run has them.
    some = random.Random(number)
    listed = [Attack(steps=(Statement(text=text),), alone=True) for text in [*SETTINGS, *targets.statements()]]
    listed += [Attack(steps=(Row(topic=topic, key=f"key-{at % KEYS}"),)) for at, topic in enumerate(targets.all())]
    if "unsendable" not in targets.without:
        listed += [Attack(steps=(Row(topic=targets.own, key="key-0", value="v" * 1_100_000),))]
        listed += [
            Attack(steps=(Row(topic=targets.own, key="key-3", names=names, contents=contents),))
            for names, contents, _ in HEADERS
        ]
    if "large" not in targets.without:
        listed += [Attack(steps=(Flood(topic=targets.own, key="key-2", records=400, value_bytes=900_000),))]
    listed += [
        _marked(
            Attack(
                steps=(Row(topic=targets.own, key="key-1"), Undone(rows=(Row(topic=targets.own, key="key-1"),))),
                end=end,
            )
        )
        for end in ("commit", "rollback", "disconnect")
    ]
    some.shuffle(listed)
    return listed, found


def _marked(attack):
    """Mark what is never committed."""
    undone = not attack.alone and attack.end != "commit"
    return replace(attack, steps=tuple(_marked_step(step, undone=undone) for step in attack.steps))


def _marked_step(step, *, undone):
    match step:
        case Undone():
            return Undone(rows=tuple(_marked_step(each, undone=True) for each in step.rows))
        case Copied():
            return Copied(rows=tuple(_marked_step(each, undone=undone) for each in step.rows))
        case Row() if undone:
            return replace(step, value=ROLLED_BACK + (step.value or ""))
        case _:
            return step
