"""Operators' actions on subscriptions: list, rewind, reshard, move and remove them, and see their lag."""
