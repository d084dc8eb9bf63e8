"""The critical path: a tree in, its graph of points that wait for each other, and what decides out.

`host_lane.py` and `stream_lane.py` lay spans of threads and work of streams into lanes, `wait.py`
finds where threads wait, `graph.py` puts these together, and `longest_path.py` knows points alone.
"""
