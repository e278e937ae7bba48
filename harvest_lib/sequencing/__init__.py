"""Message ids: their format, publishers that write them, and the sequencer by which readers see messages once."""
