"""Elastic jobs: torch's elastic agents around a rendezvous of their own, so that nodes come and go while it trains.

``rendezvous`` hosts the meeting point, ``node`` runs the agent of one node over ``connection``, ``handler`` and
``agent``. What torchrun leaves to its defaults is set for pods here: see each file.
"""
