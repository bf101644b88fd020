"""Training of encoders, `l2r-runtime encode`: records frames of an environment and trains an autoencoder on them.

Not here: the encoders that a run uses (`runtime.rl.encoders`).
"""
