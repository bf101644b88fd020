"""Cloud services and Docker: AWS, the Docker Engine's client, registries, image builds, checkpoints in buckets.

Nothing here knows about runs, slots or pods.
"""
