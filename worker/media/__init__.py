"""From whatever a client uploaded to 16 kHz mono in a spool file, cut at silence.

Decoders for untrusted bytes run in processes of their own (:mod:`worker.media.child`), kept by
:class:`worker.media.supervisor.MediaSupervisor`. Importing this package pulls in no decoder.
"""
