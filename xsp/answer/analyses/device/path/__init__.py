"""Builds the graph of a trace, whose points wait for each other, and finds the critical path.

`host_lane.py` and `stream_lane.py` lay spans of threads and work of streams into lanes, `wait.py`
finds where threads wait, `graph.py` puts these together, and `longest_path.py` knows points alone.
"""
