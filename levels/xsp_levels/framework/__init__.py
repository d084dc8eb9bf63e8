"""Framework level: layers and operators of PyTorch."""
