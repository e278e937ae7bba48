"""Pipelines: one reader, any number of writers, each at its own pace, with a commit log between them.

    reader ─► commit log ─► transforms ─► writer 1 ─► its offset log
                         └► transforms ─► writer 2 ─► its offset log

Promises
- At least once: a message of the reader is in the commit log before any writer gets it, and reaches each of them.
- Per namespace, each writer gets messages in the order of the log.
- A writer can only get a message again if it wrote the message after the last flush of its offsets.

The design follows Transporter.
"""
