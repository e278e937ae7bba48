"""The main job in one command: Spark writes, the harvester delivers, its leader is killed twice, an audit proves it.

Then the same flights are delivered exactly once. `run` conducts `loading`, `copying` and `pool`; `report` has the
result, `picture` and `page` show it. Other demos share `runner`, `place`, `feeding` and `comparing`.
"""
