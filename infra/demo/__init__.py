"""`make demo`: Spark writes, harvesters deliver, the leader is killed twice, and an audit checks the result.

Then the same flights are delivered exactly once. `run` runs `loading`, `copying` and `pool`; `report` computes the
result; `picture` and `page` show the result. Other demos also use `runner`, `place`, `feeding` and `comparing`.
"""
