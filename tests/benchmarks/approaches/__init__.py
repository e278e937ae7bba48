"""Ways of reading an outbox, each as short as it can be, on one workload that tells them apart.

No reader sends anything: the comparison is of reading. Each is written as its users write it, with its faults; none is
part of the product. `docs/approaches.md` says what the figures mean.
"""
