"""Pipelines: one reader, any number of writers, each at its own pace, with a commit log between them.

    reader ─► commit log ─► transforms ─► writer 1 ─► its offset log
                         └► transforms ─► writer 2 ─► its offset log

Promises
- At-least-once delivery: a message from the reader is in the commit log before a writer gets the message, and every
  writer gets it.
- In each namespace, a writer gets messages in the order of the log.
- After a restart, a writer gets a message again only if the message was written after the last flush of its offsets.

The design follows Transporter.
"""
