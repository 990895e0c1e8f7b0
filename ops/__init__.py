"""For people: settings, the command line, health, the embedded server, the demo and the benchmark."""
