"""Elastic jobs: torch's public launcher around a rendezvous of their own; nodes come and go while it trains.

``rendezvous`` hosts the meeting point (``shared_values``, ``etcd``); ``node`` is one node of a job:
``rendezvous_session`` and ``round_state`` say who trains in which round, ``rendezvous_handler`` says it to torch,
``launch`` runs the program.
"""
