"""Asynchronous parameter servers: weights in shards on several servers, gradients from workers that do not wait.

One exchange for each shard carries gradients as `runtime.rl.buffers.gradient_buffer` has them: counted,
acknowledged and, when they are too stale, refused by each server for itself (Li et al. 2014; Ho et al. 2013).
Everything here is NumPy: no process imports torch.
"""
