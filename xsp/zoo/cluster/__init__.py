"""Clusters: tasks and the address of a Ray cluster in, the row and trace of each point out.

`run_on_ray` (execution.py) connects to the cluster (connection.py), asks its nodes what they are
(node.py), and hands each task (assignment.py) to a node that has room for what it needs (need.py).
What runs on a node is in part.py: it holds the cores of a measurement, and sends each row with its
trace to the driver, which alone writes them.
"""

from xsp.zoo.cluster.execution import run_on_ray

__all__ = ["run_on_ray"]
