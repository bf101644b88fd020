"""Runs as Kubernetes objects: a ConfigMap for each run, which owns its Secret, Service, Jobs and ReplicaSets."""
