"""Lists and watches to a ClusterSnapshot: decoded objects joined into views, GPU usage, visibility.

Writes nothing to the cluster.
"""
