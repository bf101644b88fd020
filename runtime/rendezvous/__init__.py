"""Rendezvous of processes that start ranks of torch.distributed on several hosts: elastic jobs and learners.

``round_state`` and ``session`` decide who trains in which round, and ``handler`` passes this to torch's launcher.
They share their state as ``shared_values``, at the one address of the process that hosts them.
"""
