"""The triggers, which run in the triggerer."""
