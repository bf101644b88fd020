"""Spec files: schema, decoding with the line of each mistake, encoding, import of Kubernetes YAML and Helm values.

No I/O but reading the file that was named.
"""
