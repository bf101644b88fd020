"""Client of the API server over the official library's session: logins, lists, watches, websockets, errors.

Knows Kubernetes objects but no domain values.
"""
