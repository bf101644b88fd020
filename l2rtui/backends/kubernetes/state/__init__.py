"""Conversion of lists and watches to a ClusterSnapshot: objects joined into views, GPU usage, visibility.

Writes nothing to the cluster.
"""
