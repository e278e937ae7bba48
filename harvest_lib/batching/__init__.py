"""The batch engine: it reads batches, sends each one, and commits a checkpoint after it."""
