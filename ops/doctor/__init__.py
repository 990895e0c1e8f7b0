"""Looks for what keeps a worker from working, or from working well, and says what mends it.

Each check is a function from plain values to findings; :mod:`ops.doctor.run` gathers the values of this machine.
"""
