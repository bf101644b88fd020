"""Elastic jobs: torch's public launcher with our own rendezvous; nodes join and leave during training.

``rendezvous`` hosts the rendezvous (``shared_values``, ``etcd``); ``node`` is one node of a job.
``rendezvous_session`` and ``round_state`` decide who trains in which round, ``rendezvous_handler`` passes this to
torch, and ``launch`` runs the program.
"""
