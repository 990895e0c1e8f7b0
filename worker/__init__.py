"""The daemon: takes jobs from the queue, prepares their audio and feeds the engine."""
