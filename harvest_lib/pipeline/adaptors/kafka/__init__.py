"""`kafka`: topics as a source and as a destination."""

from harvest_lib.pipeline.adaptors import Adaptor, Side
from harvest_lib.pipeline.adaptors.kafka.options import KafkaReading, KafkaWriting
from harvest_lib.pipeline.adaptors.kafka.reader import KafkaReader
from harvest_lib.pipeline.adaptors.kafka.writer import KafkaWriter

ADAPTOR = Adaptor(
    summary="topics of Kafka: read, or written to per key in order",
    reads=Side(options=KafkaReading, make=KafkaReader),
    writes=Side(options=KafkaWriting, make=KafkaWriter),
)
