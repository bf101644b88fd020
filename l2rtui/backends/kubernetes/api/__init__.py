"""Client of the API server: logins, lists, watches, websockets, errors.

Knows Kubernetes objects and no value of the domain.
"""
