"""Ways of reading an outbox, each as short as it can be, on one workload that tells them apart.

No reader sends anything: what is compared is reading. Each is written as its users write it, with its faults; none is
part of the product. `docs/approaches.md` says what the figures mean.
"""
