"""The batch engine: it reads and sends batches, and commits a checkpoint after each."""
