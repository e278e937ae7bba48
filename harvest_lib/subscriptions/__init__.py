"""Operators' commands for subscriptions: add, list with lag, rewind, reshard, move to another server, and remove."""
