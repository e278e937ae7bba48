"""Parts of this process: its threads, its files, and the levels of its log."""
