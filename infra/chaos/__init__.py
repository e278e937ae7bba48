"""Faults on real processes, and a verdict on their outcome.

    writers ─► Postgres ─► links ─► harvesters ─► links ─► Kafka ─► readers
       │                              │                               │
       └───────────── history: events as JSON lines ──────────────────┘ ─► checker ─► verdict

Servers and harvesters are processes of this machine, started here and ended by their ids. Each harvester has links of
its own to Postgres and to every broker, which can be cut, held in either direction and delayed.
"""
