"""Conversion of spec and placement to Kubernetes objects, and of a user's YAML to a spec. Pure; tested with golden
files.

Sends nothing; `actions` does.
"""
