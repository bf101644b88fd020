"""Encoders of images, trained before a run: images in, latents out.

Not here: convolutions that a run trains itself (`runtime.rl.algos`).
"""
