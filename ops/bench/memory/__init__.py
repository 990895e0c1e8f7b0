"""``decibatch bench memory``: real work at budgets from ample to tight, and what the governor made of it."""
