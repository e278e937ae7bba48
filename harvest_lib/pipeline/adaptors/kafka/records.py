"""Messages as Kafka records: the key and the value of each record.

The key of a record identifies its row. If the option `key` lists fields for the namespace, the key has these fields,
such as `{"id":1}`. If the option lists no fields, the key is `{"namespace":"public.flights"}`. In a topic for several
namespaces, a key with fields also has the namespace: `{"namespace":"public.flights","key":{"id":1}}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harvest_lib.errors import MessageRefused
from harvest_lib.native import Field, NativeRecords, Pieces, Wrapping, kinds_of, targets_of
from harvest_lib.pipeline.adaptors.envelope import encode, encode_all, encode_joined, wrapped
from harvest_lib.pipeline.adaptors.kafka.options import NAMESPACE, KafkaWriting
from harvest_lib.pipeline.encoded_messages import PARTS, Head
from harvest_lib.pipeline.extended_json import as_dumped, dumps, quoted, scalar
from harvest_lib.pipeline.logged_messages import LoggedMessages, namespaces_and_times
from harvest_lib.pipeline.message import Op, PipelineMessage

KeyAndValue = tuple[bytes, bytes | None]

_LATEST = (1 << 63) - 1
"""The latest time that a Kafka record can have. Kafka's times are signed 64-bit milliseconds, a message's unsigned."""


def records_of(messages: Sequence[PipelineMessage], options: KafkaWriting) -> Sequence[KeyAndValue]:
    """Return the key and the value of the record for each message. Raises MessageRefused."""
    quick = _quickly(messages, options) if isinstance(messages, LoggedMessages) else None
    return quick if quick is not None else [_record(message, options) for message in messages]


def namespaces_and_record_times(messages: Sequence[PipelineMessage]) -> Sequence[tuple[str, int]]:
    """Return the namespace of each message, and the time of its record in milliseconds. Raises MessageRefused if Kafka
    cannot store the time."""
    found = namespaces_and_times(messages)
    for place, (namespace, timestamp) in enumerate(found):
        if timestamp > _LATEST:
            raise MessageRefused(
                f"message {messages[place].offset} is of a time that Kafka has no room for",
                evidence=f"timestamp {timestamp}, namespace {namespace}",
                next_step="correct it at its source, or in a transform; or acknowledge it without sending: "
                "`harvest pipeline ack`",
            )
    return [(namespace, max(0, timestamp)) for namespace, timestamp in found]


def handed_over(
    messages: LoggedMessages, options: KafkaWriting, topics: Mapping[str, str]
) -> Sequence[NativeRecords] | None:
    """Return the same records as `records_of`, as arguments of a producer's native code. `topics` maps namespaces to
    topics.

    Return None if Kafka cannot store the time of a message, or if a record has no value. Raises MessageRefused."""
    if any(timestamp > _LATEST for timestamp, _, _ in messages.kinds):
        return None
    joined = _joined(messages, options, topics)
    if joined is not None:
        return joined
    records = records_of(messages, options)
    values = [value for _, value in records if value is not None]
    if len(values) < len(records):
        return None
    numbers: dict[Head, int] = {}
    kinds = [numbers.setdefault(head, len(numbers)) for head in messages.heads]
    targets = targets_of([_target(head, topics) for head in numbers])
    return [NativeRecords(Pieces.of([key for key, _ in records]), Pieces.of(values), kinds_of(kinds), targets)]


def _joined(
    messages: LoggedMessages, options: KafkaWriting, topics: Mapping[str, str]
) -> Sequence[NativeRecords] | None:
    """Return the records of joined messages without a Python object per message; None if that is impossible."""
    values = encode_joined(messages, options.content)
    around: dict[Head, Wrapping] = {}
    if values is None or messages.joined is None:
        return None
    for head in messages.kinds:
        wrapping = _key_wrapping(head, options)
        if wrapping is None:
            return None
        around[head] = wrapping
    if any(each.field is Field.KEY for each in around.values()) and not all(
        batch.rows.has_keys for batch, _, _ in messages.joined
    ):
        return None
    found = []
    for part, (pieces, kinds) in zip(messages.joined, values, strict=True):
        keys, _ = wrapped(part, around)
        targets = targets_of([_target(head, topics) if head in around else ("", 0) for head in part[0].table])
        found.append(NativeRecords(keys, pieces, kinds, targets))
    return found


_FIELDS = {(): Field.NOTHING, ("id",): Field.ID, ("key",): Field.KEY}
"""The lists of key fields for which the native code can copy the key from an encoded outbox record."""
_PLACE = "\0"
"""A character that never occurs unescaped in JSON. It marks the position of the field in a key."""


def _key_wrapping(head: Head, options: KafkaWriting) -> Wrapping | None:
    """Return the JSON of a key in two parts: before and after the value of its field. Return None if the key's fields
    are not in `_FIELDS`, or if a message has to be refused."""
    op, namespace = PARTS[head[1]][1], head[2].decode()
    fields = options.key.get(namespace)
    if options.content == "data" and (fields is None or op is Op.COMMAND):
        return None
    names = tuple(dict.fromkeys(fields)) if fields and op is not Op.COMMAND else ()
    field = _FIELDS.get(names)
    if field is None:
        return None
    template = _template(namespace, names, options)
    text = template % (_PLACE,) if names else template
    before, _, after = text.partition(_PLACE)
    return None if as_dumped(text) is None else Wrapping(before.encode(), after.encode(), field)


def _target(head: Head, topics: Mapping[str, str]) -> tuple[str, int]:
    timestamp, _, key = head
    return topics[key.decode()], max(0, timestamp)


def _record(message: PipelineMessage, options: KafkaWriting) -> KeyAndValue:
    namespace = message.namespace
    fields = options.key.get(namespace)
    if options.content == "data" and (fields is None or message.op is Op.COMMAND):
        raise MessageRefused(
            f"message {message.offset} cannot be written by its data alone",
            evidence=f"a command of {namespace}" if fields else f"`key` has nothing for the namespace {namespace}",
            next_step="name its fields in `key`, write envelopes, or drop such messages in a transform",
        )
    named = {name: message.data.get(name) for name in fields} if fields and message.op is not Op.COMMAND else {}
    if None in named.values():
        missing = ", ".join(name for name, value in named.items() if value is None)
        raise MessageRefused(
            f"message {message.offset} has no key",
            evidence=f"{missing} is missing or null, namespace {namespace}",
            next_step="correct `key`, or the transform that removed it",
        )
    is_tombstone = options.content == "data" and message.op is Op.DELETE
    return dumps(_key(namespace, named, options)), None if is_tombstone else encode(message, options.content)


def _key(namespace: str, named: Mapping[str, Any], options: KafkaWriting) -> Mapping[str, Any]:
    if not named:
        return {"namespace": namespace}
    return named if NAMESPACE in options.topic else {"namespace": namespace, "key": named}


def _quickly(messages: LoggedMessages, options: KafkaWriting) -> Sequence[KeyAndValue] | None:
    """Return the result of `_record` for each message, computed from columns of encoded data.

    Return None if the messages have to be handled individually: a message has to be refused, or a value in a key is
    neither text nor a whole number."""
    kinds: dict[Head, tuple[str, tuple[str, ...]]] = {}
    for head in messages.kinds:
        op, namespace = PARTS[head[1]][1], head[2].decode()
        fields = options.key.get(namespace)
        if options.content == "data" and (fields is None or op in {Op.COMMAND, Op.DELETE}):
            return None
        kinds[head] = namespace, tuple(dict.fromkeys(fields)) if fields and op is not Op.COMMAND else ()
    places: dict[tuple[str, tuple[str, ...]], list[int]] = {kind: [] for kind in kinds.values()}
    for place, head in enumerate(messages.heads):
        places[kinds[head]].append(place)
    columns = {name: messages.column(name) for _, names in places for name in names}
    keys = [b""] * len(messages)
    for (namespace, names), at in places.items():
        named = [[columns[name][place] for place in at] for name in names]
        found = _keys(namespace, names, named, len(at), options)
        if found is None:
            return None
        for place, key in zip(at, found, strict=True):
            keys[place] = key
    return list(zip(keys, encode_all(messages, options.content), strict=True))


def _keys(
    namespace: str, names: Sequence[str], columns: Sequence[Sequence[object]], count: int, options: KafkaWriting
) -> Sequence[bytes] | None:
    """Return the keys of `count` messages of a namespace. `columns` has the values of each key field in `names`.

    Return None if a value is neither text nor a whole number.
    """
    template = _template(namespace, names, options)
    try:
        texts = [template % row for row in zip(*(map(scalar, column) for column in columns), strict=True)]
    except (TypeError, ValueError):
        return None
    keys = [as_dumped(text) for text in (texts if names else [template])]
    found = [key for key in keys if key is not None]
    return None if len(found) < len(keys) else found if names else found * count


def _template(namespace: str, names: Sequence[str], options: KafkaWriting) -> str:
    """Return the JSON of `_key`, with `%s` in place of each field's value. Without fields, the result is the complete
    JSON."""
    if not names:
        return f'{{"namespace":{quoted(namespace)}}}'
    row = ",".join(quoted(name).replace("%", "%%") + ":%s" for name in names)
    if NAMESPACE in options.topic:
        return f"{{{row}}}"
    return f'{{"namespace":{quoted(namespace).replace("%", "%%")},"key":{{{row}}}}}'
