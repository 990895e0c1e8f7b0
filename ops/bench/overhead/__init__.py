"""``decibatch bench overhead``: what a queue costs when the work costs nothing, against others."""
