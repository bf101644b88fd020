"""Encoders of pictures that are trained before a run and stay as they are in it: pictures in, latents out.

Not here: convolutions that a run learns itself (`runtime.rl.algos`).
"""
