"""Cloud services and Docker: AWS, the Docker Engine's client, registries, image builds, checkpoints in buckets.

Nothing here knows a run, a slot or a pod.
"""
