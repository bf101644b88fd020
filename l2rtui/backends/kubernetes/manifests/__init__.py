"""Spec and placement to Kubernetes objects, and a user's YAML to a spec. Pure; compared with golden files.

Sends nothing: that is in `actions`.
"""
