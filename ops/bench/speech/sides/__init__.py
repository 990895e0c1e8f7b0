"""Programs that recognise, each in the environment of its own peer: they import nothing of each other's."""
