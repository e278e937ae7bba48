"""Postgres: connections and their errors, causes by SQLSTATE, names of tables, databases in SQL_ASCII."""
