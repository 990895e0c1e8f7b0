"""The contract between those who enqueue and those who work: jobs, keys, scripts, events, clients.

Knows no MLX and no media. Everything that crosses Redis is defined here: the JSON of a job
(:mod:`queueing.job`), the names of the keys (:mod:`queueing.keys`), the Lua scripts that are the
only writers of state (``lua/``), and the clients over them.
"""
