"""What providers share: performance events, probes, symbols, machine code, standard output."""
