"""One Docker Engine as the cluster: runs are networks, pods are containers, and the Engine stores all state."""
