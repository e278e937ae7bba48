"""Passwords that are made once and kept beside the data, readable by the owner only."""

import secrets
from pathlib import Path

import psycopg

from harvest_lib.local_stack.state import write_private


def kept_secret(file: Path) -> str:
    """Return the secret in the file, making it first if there is none."""
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32))
    return file.read_text()


def scram_verifier(connection: psycopg.Connection[tuple[object, ...]], password: str) -> str:
    """Return the verifier that Postgres stores for the password: clear text could get into the server's log."""
    return connection.pgconn.encrypt_password(
        password.encode(), connection.info.user.encode(), b"scram-sha-256"
    ).decode()
