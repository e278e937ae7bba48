"""Records whose header has a name of any bytes, which clients in C and Go write, and the one for Python does not."""

import ctypes
import sys
from ctypes import c_char_p, c_int, c_size_t, c_void_p

import confluent_kafka

_TOPIC, _KEY, _VALUE, _HEADERS, _FLAGS, _END = 1, 5, 4, 10, 7, 0
_COPY = 2


def write_raw_header(bootstrap_servers, topic, name, *, key=b"k", value=b"v"):
    """Write a record with one header, and wait until Kafka has it."""
    kafka = ctypes.CDLL(sys.modules[confluent_kafka.libversion.__module__].__file__)
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(kafka, function).restype = c_void_p
    said = ctypes.create_string_buffer(512)
    settings = c_void_p(kafka.rd_kafka_conf_new())
    kafka.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap_servers.encode(), said, c_size_t(512))
    producer = c_void_p(kafka.rd_kafka_new(0, settings, said, c_size_t(512)))
    headers = c_void_p(kafka.rd_kafka_headers_new(c_size_t(1)))
    kafka.rd_kafka_header_add(headers, c_char_p(name), c_size_t(len(name)), c_char_p(b"x"), c_size_t(1))
    parts = [c_int(_TOPIC), c_char_p(topic.encode()), c_int(_FLAGS), c_int(_COPY), c_int(_HEADERS), headers]
    parts += [c_int(_VALUE), c_char_p(value), c_size_t(len(value)), c_int(_KEY), c_char_p(key), c_size_t(len(key))]
    assert kafka.rd_kafka_producev(producer, *parts, c_int(_END)) == 0, said.value
    assert kafka.rd_kafka_flush(producer, 60_000) == 0
    kafka.rd_kafka_destroy(producer)
