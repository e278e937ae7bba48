"""The partition of a key under librdkafka's partitioners, and the share of keys that move when partitions are added."""

import math
import zlib
from collections.abc import Callable, Mapping

from harvest_lib.errors import ConfigError

DEFAULT = "consistent"
_UINT32 = 0xFFFF_FFFF
_INT32_SIGN = 0x8000_0000


def _murmur2(key: bytes) -> int:
    """Return the hash of Java's default partitioner."""
    multiplier, shift = 0x5BD1E995, 24
    found = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & _UINT32
        word = (word ^ word >> shift) * multiplier & _UINT32
        found = (found * multiplier & _UINT32) ^ word
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * multiplier & _UINT32
    found = (found ^ found >> 13) * multiplier & _UINT32
    return (found ^ found >> 15) & ~_INT32_SIGN


def _fnv1a(key: bytes) -> int:
    """Return the hash of Sarama's default partitioner."""
    found = 0x811C9DC5
    for byte in key:
        found = (found ^ byte) * 0x01000193 & _UINT32
    return 2**32 - found if found & _INT32_SIGN else found


_HASHES: Mapping[str, Callable[[bytes], int]] = {"consistent": zlib.crc32, "murmur2": _murmur2, "fnv1a": _fnv1a}


def partition_of(key: bytes, partitions: int, partitioner: str = DEFAULT) -> int:
    """Return the partition, below `partitions`, of a nonempty key. Raises ConfigError for a random partitioner."""
    name = partitioner.removesuffix("_random")  # the suffix is for empty and missing keys
    if name not in _HASHES:
        raise ConfigError(
            f"`partitioner: {partitioner}` gives a key no partition of its own",
            field="producerKafkaConfig.partitioner",
            next_step=f"a key has a partition under {', '.join(_HASHES)}",
        )
    return _HASHES[name](key) % partitions


def moved_share(before: int, after: int) -> float:
    """Return the share of all keys that move when the number of partitions goes from `before` to `after`."""
    return 1 - min(before, after) / math.lcm(before, after)
