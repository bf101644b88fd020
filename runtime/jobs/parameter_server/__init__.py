"""Asynchronous parameter servers: weights in shards on several servers, gradients from workers that do not wait.

One exchange per shard transfers gradients as in `runtime.rl.buffers.gradient_buffer`: each server counts and
acknowledges them, and rejects them if they are too stale (Li et al. 2014; Ho et al. 2013). Everything here uses
NumPy: no process imports torch.
"""
