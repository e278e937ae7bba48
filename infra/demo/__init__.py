"""The main job in one command: Spark writes, the harvester delivers, its leader is killed twice, an audit proves it.

`run` conducts it; `place`, `loading` and `pool` are what it conducts; `report` says what came of it, `picture` and
`page` show that.
"""
