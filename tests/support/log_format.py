"""Entries of a log, by the field tables of the design's document and nothing else: no line of it is the library's."""

ENTRY = [
    ("offset", 8),
    ("message length", 4),
    ("timestamp", 8),
    ("mode", 1),
    ("key length", 4),
    ("key", "key length"),
    ("data length", 4),
    ("data", "data length"),
]
MODES = ["Copy", "Sync", "Complete"]
OPS = ["insert", "update", "delete", "command", "noop"]
INDEX_RECORD = [
    ("magic", 4),
    ("record length", 4),
    ("kind", 1),
    ("position", 8),
    ("length", 8),
    ("first offset", 8),
    ("next offset", 8),
    ("checksum", 4),
    ("keys", 4),
]
INDEX_KEY = [("offset", 8), ("key length", 4), ("key", "key length")]


def fields(table, data, at):
    """Return a row of a table, and where it ends."""
    found = {}
    for name, size in table:
        width = found[size] if isinstance(size, str) else size
        part = data[at : at + width]
        assert len(part) == width, f"{name} is cut off"
        found[name] = part if name in {"key", "data", "magic"} else int.from_bytes(part, "big")
        at += width
    return found, at


def decode(data):
    """Return the entries of a segment as dictionaries."""
    at, entries = 0, []
    while at < len(data):
        begin = at
        entry, at = fields(ENTRY, data, at)
        assert at - begin == 8 + 4 + 8 + 1 + entry["message length"]
        entry["document mode"], entry["op"] = MODES[entry["mode"] % 4], OPS[entry["mode"] // 4]
        entries.append(entry)
    return entries


def encode(offset, timestamp, mode, op, key, data):
    """Return an entry's bytes."""
    message = len(key).to_bytes(4, "big") + key + len(data).to_bytes(4, "big") + data
    byte = MODES.index(mode) + 4 * OPS.index(op)
    head = offset.to_bytes(8, "big") + len(message).to_bytes(4, "big")
    return head + timestamp.to_bytes(8, "big") + bytes([byte]) + message


def decode_index(data):
    """Return the records of an index, each with its own checksum and what that is of."""
    at, records = 0, []
    while at < len(data):
        begin = at
        record, at = fields(INDEX_RECORD, data, at)
        record["newest"] = {}
        for _ in range(record["keys"]):
            key, at = fields(INDEX_KEY, data, at)
            record["newest"][key["key"]] = key["offset"]
        record["of"] = data[begin:at]
        record["record checksum"] = int.from_bytes(data[at : at + 4], "big")
        at += 4
        assert at - begin == record["record length"]
        records.append(record)
    return records
