"""PyTorch: modules, operators, training steps."""
