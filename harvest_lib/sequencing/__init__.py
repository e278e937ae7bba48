"""Message ids, their format and their order, for publishers and exactly-once consumers."""
