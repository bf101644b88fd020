"""Runs as Kubernetes objects: each run has a ConfigMap, which owns its Secret, Service, Jobs and ReplicaSets."""
