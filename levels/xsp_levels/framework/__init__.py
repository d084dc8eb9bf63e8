"""Framework level: providers of layers and operators, a package per framework."""
