"""Encoders of pictures that are trained before a run: pictures in, latents out.

Not here: convolutions that a run learns itself (`runtime.rl.algos`).
"""
