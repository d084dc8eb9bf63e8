"""oneDNN: primitives, by its verbose mode."""
