"""A backend with its queue: the file that holds it, and the runs that wait in it among the rows.

The process that keeps a queue, and the commands that fill it, are in ``services.queue``.
"""
