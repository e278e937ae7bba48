"""Message ids, and how they are written and put in order: what publishers and exactly-once consumers share."""
