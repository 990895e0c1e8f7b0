"""What enqueues and reads: a program for each queue, run in its own environment."""
