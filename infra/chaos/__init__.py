"""Fault injection on real processes, and a verdict on the result.

    writers ─► Postgres ─► links ─► harvesters ─► links ─► Kafka ─► readers
       │                              │                               │
       └───────────── history: events as JSON lines ──────────────────┘ ─► checker ─► verdict

This package starts servers and harvesters as processes on this machine, and ends them by their ids. Each harvester has
its own links to Postgres and to every broker. A link can be cut, blocked in either direction or delayed.
"""
