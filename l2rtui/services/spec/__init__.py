"""Spec files: schema, decoding with the line of each error, encoding, import of Kubernetes YAML and Helm values.

The only I/O is reading the named file.
"""
