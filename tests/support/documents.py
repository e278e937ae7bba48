"""Configurations for the command line: right ones made from the model's own fields, and all that is wrong in one."""

import json
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Annotated, Literal, get_args, get_origin

import yaml
from hypothesis import strategies as st

from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.config.spelling import goharvest_name

CANARY = "c4n4ry-of-a-secret"

NOWHERE = "host=127.0.0.1 port=1 user=bob dbname=shop sslmode=disable"
"""A server that refuses at once: a configuration is right if the server is asked."""

_GROUP = "group"
_TEXTS = {
    "leader_group_id": st.just(_GROUP),
    "leader_topic": st.sampled_from(["group.neli", "a", "A.b_c-d", "t" * 249]),
    "checkpoint_topic": st.sampled_from(["group.checkpoint", "c" * 249]),
    "data_source": st.just(f"{NOWHERE} password={CANARY}"),
    "outbox_table": st.sampled_from(["outbox", "billing.outbox", "a;b", 'a"b', "ü", "%s", "{}", "x.y.z", "'; --", "#"]),
    "subscription": st.sampled_from(["default", "search-1", "a.b", "s" * 100]),
    "name": st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20),
}
_KAFKA = st.fixed_dictionaries(
    {"bootstrap.servers": st.just("127.0.0.1:1"), "sasl.password": st.just(CANARY)},
    optional={
        "client.id": st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=10),
        "linger.ms": st.integers(0, 900_000),
        "compression.type": st.sampled_from(["lz4", "zstd", "none"]),
        "acks": st.sampled_from(["all", -1]),
        "enable.idempotence": st.just(value=True),
        "socket.keepalive.enable": st.booleans(),
    },
)
_COLUMN = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15),
    st.fixed_dictionaries({"value": st.sampled_from(["orders", "", "%s", "'; DROP TABLE x"])}),
)

NO_SETTING = [CANARY, [CANARY], {"a": CANARY}, None, 1]
NO_LIMIT = ["x", "-1", "nan", "inf", "1e999", "-1s", "[]", CANARY, "ü"]
NO_TRUTH = ["perhaps", 2, 1.5, [True], {"a": 1}]
NO_NUMBER = [-1, 1.5, True, "many", [1], {"a": 1}, "0x", 10**30 + 0.5]
NO_TIME = ["-1s", "5", "5 s", "soon", "1s1", True, [1], {"a": 1}, 7, 0.5, "999999999h", "1e3s", "٣s"]
NO_TEXT = [["a"], {"a": "b"}, [[["a"]]]]
NO_NAME = {
    "leader_topic": ["a b", "..", "t" * 250, "ü", "a\nb", *NO_TEXT],
    "checkpoint_topic": ["a/b", ".", "c" * 250, *NO_TEXT],
    "data_source": [
        f"password={CANARY} host",
        f"password='{CANARY}",
        f"postgres://bob:{CANARY}@[::1/x",
        f"sslinline={CANARY}",
        f"=x password={CANARY}",
        *NO_TEXT,
    ],
    "outbox_table": [".", "a.", ".b", " ", "t" * 64, "ü" * 32, "a\0b", "a\ud800b", *NO_TEXT],
    "subscription": ["", "a b", "s" * 101, "ü", "a\n", *NO_TEXT],
    "name": ["a\ud800", "a\0", *NO_TEXT],
    "leader_group_id": ["a\ud800b", "a\0b", *NO_TEXT],
}
NO_KAFKA = [
    ("group.id", CANARY),
    ("acks", 1),
    ("enable.idempotence", False),
    ("delivery.timeout.ms", CANARY),
    ("session.timeout.ms", -5),
    ("go.delivery.reports", True),
    ("retries", 3),
    ("batch.size", "many"),
    ("error_cb", "print"),
    ("default.topic.config", "x"),
    ("linger.ms", 2**63),
    ("linger.ms", None),
    ("linger.ms", [1]),
    ("linger.ms", {CANARY: CANARY}),
    ("client.id", f"{CANARY}\ud800"),
    ("client.id", f"{CANARY}\0x"),
]
NO_COLUMNS = [
    ("id", ""),
    ("id", {"value": "x"}),
    ("transaction_id", 5),
    ("kafka_key", {"values": "x"}),
    ("kafka_key", "k" * 64),
    ("kafka_key", "a\0"),
    ("kafka_key", "a\ud800"),
    ("kafka_topic", {"value": "a\ud800"}),
    ("headers", ["a"]),
    ("nothing", "a"),
]
FORMS = [
    "!!bool maybe",
    "!!int ''",
    "!!int x",
    "!!float x",
    "!!timestamp x",
    "!!binary x",
    "!!python/object:os.system x",
    "!!set {a}",
    "!own x",
    "2001-99-99",
    "1:99:99",
    "0x" + "f" * 5_000,
    "9" * 5_000,
]
"""Scalars of which YAML makes nothing, something odd, or a number of more digits than Python prints."""


@dataclass
class Document:
    """A configuration as a person gives it."""

    values: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    nested: bool = True
    replaced: dict = field(default_factory=dict)

    def text(self):
        """Return the file; placeholders stand for what no value makes YAML write."""
        whole = {"harvest": self.values, "logging": {"level": "info"}} if self.nested else self.values
        text = yaml.safe_dump(whole, allow_unicode=True)
        for placeholder, form in self.replaced.items():
            text = text.replace(placeholder, form)
        return text


def _seconds():
    return st.sampled_from(["500ms", "1s", "1.5s", "1m30s", "2h"])


def _is_number(kind):
    """Return True if a field's type is a number, or one that may be left out."""
    return kind is int or any(get_origin(each) is Annotated and get_args(each)[0] is int for each in get_args(kind))


def _right(name, found):
    """Return values of a field, by its name or by its type."""
    if name in _TEXTS:
        return _TEXTS[name]
    if name in ("base_kafka_config", "producer_kafka_config"):
        return _KAFKA
    if name.endswith("_seconds"):
        return _seconds()
    kind = found.annotation
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if _is_number(kind):
        return st.integers(1, 1000)
    if kind is Limits:
        return st.fixed_dictionaries({}, optional=_spelled(Limits))
    assert get_origin(kind) is UnionType, f"no values for {name}: {kind}"
    assert NoneType in get_args(kind)
    return st.fixed_dictionaries(
        {"id": st.just("id")},
        optional={
            "kafka_topic": _COLUMN,
            "kafka_key": _COLUMN,
            "headers": st.dictionaries(st.text("abü%{}", min_size=1, max_size=3), _COLUMN, max_size=2),
        },
    )


def _wrong(name, found):
    if name in NO_NAME:
        return NO_NAME[name]
    if name.endswith("_seconds"):
        return NO_TIME
    kind = found.annotation
    if get_origin(kind) is Literal:
        return ["other", 1, ["a"], {"a": "b"}]
    if kind is bool:
        return NO_TRUTH
    return NO_NUMBER if _is_number(kind) else ["text", [1], 5]


def _spelled(model, *without):
    return {
        goharvest_name(name): _right(name, found) for name, found in model.model_fields.items() if name not in without
    }


def _known():
    """Return every field as (path, what is wrong for it)."""
    for name, found in HarvestConfig.model_fields.items():
        yield (goharvest_name(name),), _wrong(name, found)
    for name, found in Limits.model_fields.items():
        yield ("limits", goharvest_name(name)), _wrong(name, found)


_FIELDS = list(_known())


@st.composite
def right(draw):
    """Make a document in which each field is what it should be; together they may still disagree."""
    must = {"leaderGroupID": _TEXTS["leader_group_id"], "dataSource": _TEXTS["data_source"], "baseKafkaConfig": _KAFKA}
    rest = {name: values for name, values in _spelled(HarvestConfig).items() if name not in must}
    values = draw(st.fixed_dictionaries(must, optional=rest))
    return Document(values, nested=draw(st.booleans()))


def _least():
    kafka = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": CANARY}
    return Document({"leaderGroupID": _GROUP, "dataSource": f"{NOWHERE} password={CANARY}", "baseKafkaConfig": kafka})


def _put(document, path, value):
    *above, last = path
    place = document.values
    for each in above:
        if not isinstance(place.get(each), dict):
            place[each] = {}
        place = place[each]
    place[last] = value


def wrong():
    """Yield documents with one thing that has to be refused, and what has to be named then."""
    faults = [(path, value) for path, values in _FIELDS for value in values]
    faults += [((*path, "strange?"), value) for path in ((), ("limits",)) for value in NO_SETTING]
    faults += [
        ((mapping, name), value) for mapping in ("baseKafkaConfig", "producerKafkaConfig") for name, value in NO_KAFKA
    ]
    faults += [(("columns", name), value) for name, value in NO_COLUMNS]
    for path, value in faults:
        document = _least()
        _put(document, path, value)
        yield document, path[-1] if path[0].endswith("KafkaConfig") else ".".join(path)
    for name in Limits.model_fields:
        for text in NO_LIMIT:
            variable = f"HARVEST_LIMITS__{name.upper()}"
            yield replace(_least(), variables={variable: text}), variable


@st.composite
def odd(draw):
    """Make a document with a scalar of an odd form, odd variables, or something very deep: right or wrong, but said."""
    document = draw(right())
    path, _ = draw(st.sampled_from([*_FIELDS, (("baseKafkaConfig", "acks"), ()), (("columns", "id"), ())]))
    kind = draw(st.sampled_from(["form", "deep", "json", "big"]))
    if kind == "form":
        _put(document, path, "@placeholder")
        document.replaced["'@placeholder'"] = draw(st.sampled_from(FORMS))
    elif kind == "deep":
        depth = draw(st.sampled_from([3, 50, 150, 400, 2_000]))
        _put(document, path, "@placeholder")
        opened, closed = draw(st.sampled_from(["[]", ("{a: ", "}")]))
        document.replaced["'@placeholder'"] = opened * depth + closed * depth
    elif kind == "big":
        _put(document, path, "@placeholder")
        document.replaced["'@placeholder'"] = "x" * draw(st.sampled_from([10_000, 50_000]))
    else:
        name = draw(st.sampled_from(["LIMITS", "BASE_KAFKA_CONFIG", "PRODUCER_KAFKA_CONFIG", "COLUMNS"]))
        texts = ["{", "[]", "1", '"a"', "null", "[" * 9_000, '{"sendBuffer": ' + "9" * 5_000 + "}", '{"a": "\\ud800"}']
        texts.append(json.dumps({"id": {"value": [{"a": 1}]}, "acks": {"a": CANARY}}))
        document.variables[f"HARVEST_{name}"] = draw(st.sampled_from(texts))
    return document


@st.composite
def broken(draw):
    """Make bytes of which hardly anything can be made: random ones, or a right file that was cut and spliced."""
    if draw(st.booleans()):
        return draw(
            st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
        )
    text = draw(right()).text().replace(CANARY, "x")
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 20))
        piece = draw(
            st.one_of(
                st.sampled_from([*"{}[]&*!|>'\"%@`,:?#-\t\n", "<<: ", "&a ", "*a", "---\n", "? "]),
                st.text(max_size=5),
            )
        )
        text = text[:start] + piece + text[start + length :]
    return text.encode("utf-8", "surrogatepass")
