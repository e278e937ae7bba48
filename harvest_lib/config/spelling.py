"""The two spellings of a setting, Python's and goharvest's.

`limits.mark_query_records` is `limits.markQueryRecords` in a file. The Python name of a duration ends in `_seconds`.
The name in a file has no such ending, because the value in a file has a unit.
"""

from pydantic import BaseModel

_IRREGULAR = {"leader_group_id": "leaderGroupID"}
_ALSO = {"receiveDeadline": "heartbeat_timeout_seconds"}  # the name goharvest's documentation uses


def goharvest_name(field_name: str) -> str:
    """Return the name of a field in goharvest's spelling."""
    if field_name in _IRREGULAR:
        return _IRREGULAR[field_name]
    if not field_name.islower():
        return field_name  # an unknown key is returned as it was written
    first, *rest = field_name.removesuffix("_seconds").split("_")
    return first + "".join(word.capitalize() for word in rest)


def goharvest_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the field's name for every spelling that a file may use."""
    names = {goharvest_name(name): name for name in model.model_fields}
    return names | {also: name for also, name in _ALSO.items() if name in model.model_fields}
