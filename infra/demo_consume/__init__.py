"""`make demo-consume`: flights are counted exactly, while those who count are killed and frozen."""
