"""Outbox rows as anybody may write them: good ones that look odd, and each kind of bad one, with what is said of it."""

import random
from dataclasses import dataclass, field

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

ODD = "'; DROP TABLE outbox; -- \\ \" %s %(x)s {} {0} $1 E'\\\\'\n\r\tü€😀\u202e\u0000\u0001\x7f".replace("\0", "")
PIECES = [
    "",
    "%",
    "%s",
    "{}",
    "'",
    '"',
    ";--",
    "\\",
    "\n",
    "\r\n",
    "\x01",
    "ü",
    "€",
    "😀",
    "\u202e",
    "\ufeff",
    "\uffff",
]

KEYS = 12
"""Few, so that good rows come behind bad ones of their key."""


@dataclass(frozen=True, kw_only=True)
class HostileRow:
    """One row. `headers` are what stands in the two columns: lists, or for an array of another form its SQL text.

    `reason` is None for a row that has to arrive, else what has to be in the reason for which it is parked."""

    topic: str | None  # None: the test's own
    key: str
    value: str | None
    names: list | str = field(default_factory=list)
    contents: list | str = field(default_factory=list)
    reason: str | None = None
    created: str = "now"


_text = st.one_of(
    st.just(ODD),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)
_keys = st.one_of(
    st.integers(0, KEYS).map(lambda number: f"key-{number}"), st.sampled_from(["", " ", ODD, "%s", "'", "k" * 100])
)
_values = st.one_of(st.none(), _text, st.sampled_from(["", "v" * 10_000, "😀" * 2_500, '{"a": "\\u0000"}']))
_created = st.sampled_from(["now", "now", "now", "infinity", "-infinity", "4713-01-01 BC", "294276-12-31"])


@st.composite
def good(draw):
    """Make a row that Kafka takes."""
    headers = draw(
        st.lists(
            st.tuples(st.one_of(_text, st.sampled_from(["a", "harvest"])), st.one_of(st.none(), _text)), max_size=4
        )
    )
    names, contents = [name for name, _ in headers], [content for _, content in headers]
    if len(headers) == 1 and draw(st.booleans()):  # an array may begin anywhere
        names, contents = "[5:5]={a}", "[-1:-1]={b}"
    return HostileRow(
        topic=None, key=draw(_keys), value=draw(_values), names=names, contents=contents, created=draw(_created)
    )


ILLEGAL = ["", " ", ".", "..", "a b", "a/b", "ü", "%s", "{}", "'; --", "a\nb", "\x01", "a\ttab", "😀", "*", "a,b"]
HEADERS = [
    ([""], [], "1 header names, 0 header values"),
    ([], [""], "0 header names, 1 header values"),
    (["a", "b"], [None], "2 header names, 1 header values"),
    ([None], ["b"], "a header without a name"),
    (["a", None, "c"], ["1", "2", None], "a header without a name"),
    ("{{a},{b}}", "{x,y}", "header"),
    ("{a,b}", "{{x},{y}}", "header"),
    ("{{a,b},{c,d}}", "{{1,2},{3,4}}", "header"),
    ("{{NULL}}", "{{x}}", "header"),
]


@st.composite
def bad(draw, *, topics=(), header_arrays=True):
    """Make a row that Kafka never takes. `topics` are more that it cannot be for, each with what is said of it."""
    kind = draw(st.sampled_from(["topic", "missing", "headers"] if header_arrays else ["topic", "missing"]))
    topic, names, contents, reason = None, [], [], ""
    if kind == "topic":
        topic, reason = draw(st.sampled_from([*((name, "the topic's name is not legal") for name in ILLEGAL), *topics]))
    elif kind == "missing":
        topic, reason = draw(st.sampled_from(["no-such-topic", "No.Such_Topic", "n" * 249])), "the topic does not exist"
    else:
        names, contents, reason = draw(st.sampled_from(HEADERS))
    return HostileRow(topic=topic, key=draw(_keys), value=draw(_values), names=names, contents=contents, reason=reason)


def rows(count, *, share_bad=0.05, number=0, header_arrays=True, topics=()):
    """Return so many generated rows; the bad ones at random among them."""
    few = int(count * share_bad)
    found = _generated(good(), count - few, number)
    if few:
        found += _generated(bad(topics=topics, header_arrays=header_arrays), few, number)
        found += _each_form_of_headers() if header_arrays else ()
    random.Random(number).shuffle(found)
    return found


def _each_form_of_headers():
    """Return one row of each, of keys of their own, so that each is the first of its key."""
    for at, (names, contents, reason) in enumerate(HEADERS):
        yield HostileRow(topic=None, key=f"headers-{at}", value="v", names=names, contents=contents, reason=reason)


def _generated(strategy, count, number):
    """Return what Hypothesis makes of a strategy; it is run for what it finds odd, and nothing fails here."""
    found = []

    @seed(number)
    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None)
    @given(strategy)
    def collect(row):
        found.append(row)

    collect()
    while len(found) < count:  # there are no more different ones
        found.append(found[len(found) % max(1, len(found) // 2)])
    return found[:count]
