"""The main job in one command: Spark writes, the harvester delivers, its leader is killed twice, an audit proves it.

Then the same flights are delivered exactly once. `run` conducts it; `place`, `loading`, `copying` and `pool` are what
it conducts; `report` says what came of it, `picture` and `page` show that.
"""
