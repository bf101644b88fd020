"""A backend with its queue: the queue's file, and its waiting runs among the rows.

``services.queue`` has the process that keeps a queue, and the commands that fill it.
"""
