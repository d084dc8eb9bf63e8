"""Analyses of devices: a trace in, what devices, launches and ranks did with their time out."""
