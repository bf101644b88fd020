"""Queue of runs that wait for slots: submission, the process that keeps it, and what lists say of it.

Order and admission are in ``domain.queue``; the file and the rows of queued runs in ``backends.queued``.
"""
