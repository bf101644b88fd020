"""Queue of runs that wait for slots: submission, its keeper process, and its rows in lists.

Order and admission are in ``domain.queue``; the file and the rows of queued runs in ``backends.queued``.
"""
