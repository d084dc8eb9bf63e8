"""Shows traces: pages, plots, exports, the command line."""
