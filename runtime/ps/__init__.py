"""Asynchronous parameter servers: weights in shards on several servers, gradients from workers that do not wait.

It is distributed update as the learner knows it (`runtime.gradients`), with one exchange for each shard: gradients
are counted, acknowledged and, when they are too old, refused by each server for itself (Li et al. 2014; Ho et al.
2013). Everything here is NumPy: no process imports torch.
"""
