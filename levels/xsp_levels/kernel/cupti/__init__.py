"""NVIDIA GPUs through CUPTI. Nothing in this package has run on a GPU yet."""
