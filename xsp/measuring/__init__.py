"""Measures calls, programs and models: ties what records to what reads."""
