"""SQL over the state of entities, on the worker's side.

states    where the state of one entity is: in memory, on disk, in history (E-4)
tables    all live entities of a type that this worker owns, kept current by its commits
service   the sandbox and the tables as one service; what questions from elsewhere are answered by
"""
