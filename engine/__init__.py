"""The MLX side: one process, one thread that owns MLX, sessions stepped over batches of chunks.

Knows no Redis and no jobs beyond an opaque name: it reads samples from spool files and answers
with text. Importing :mod:`engine`, :mod:`engine.protocol`, :mod:`engine.windows` or
:mod:`engine.handle` never imports MLX; only the child process (``python -m engine``) does.
"""
