"""Passwords that are generated once and stored in files next to the data. Only the owner can read the files."""

import secrets
from pathlib import Path

import psycopg

from harvest_lib.local_stack.state import write_private


def kept_secret(file: Path) -> str:
    """Return the secret in a file. If the file does not exist, generate a secret and write it."""
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32))
    return file.read_text()


def scram_verifier(connection: psycopg.Connection[tuple[object, ...]], password: str) -> str:
    """Return the SCRAM verifier of a password. Statements contain the verifier instead of the password, because the
    server may log them."""
    return connection.pgconn.encrypt_password(
        password.encode(), connection.info.user.encode(), b"scram-sha-256"
    ).decode()
