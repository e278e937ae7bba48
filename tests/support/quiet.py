"""The end of a session of tests: no library speaks after the last result."""

import gc
import logging


def keep_py4j_quiet() -> None:
    """Let py4j's words reach no handler of the root logger.

    It says when its connection to Java ends, also after the last test. A handler that some library made while a test
    ran writes to what pytest captured of that test, which is closed by then, and `logging` prints the error.
    """
    py4j = logging.getLogger("py4j")
    py4j.propagate = False
    py4j.addHandler(logging.NullHandler())  # else the handler of last resort takes its place


def end_clients() -> None:
    """End the Kafka clients that nobody refers to any more, before their brokers end.

    Those in a cycle live until they are collected. Meanwhile they ask for brokers, and print that none answers.
    """
    gc.collect()
