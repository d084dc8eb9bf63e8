"""Profiles from within other tools: trainers, pytest, notebooks, trackers and ASGI servers.

Each module is public and needs its tool: `lightning`, `huggingface`, `keras` and `accelerate` begin
and end a profile with a training (training.py does the work), `pytest_plugin` profiles tests,
`jupyter` cells, `asgi` requests, and `tracker` hands a trace to MLflow, Weights & Biases or
TensorBoard.
"""
