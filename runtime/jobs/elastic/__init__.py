"""Elastic jobs: torch's public launcher with our own rendezvous; nodes join and leave during training.

``rendezvous`` hosts the rendezvous, here or in an ``etcd``; ``node`` is one node of a job. `runtime.rendezvous`
decides who trains in which round.
"""
