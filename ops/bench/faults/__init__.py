"""``decibatch bench faults``: real workers under load, a seeded script of faults, and an observer that counts."""
