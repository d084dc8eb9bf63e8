"""Analyses of devices show how devices, launches and ranks spend their time."""
