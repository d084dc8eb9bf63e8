"""System level: what the operating system does for the threads of the program."""
