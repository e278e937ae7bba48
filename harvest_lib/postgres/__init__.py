"""Access to Postgres: connections and their errors, causes by SQLSTATE, table names, databases in SQL_ASCII."""
