"""Training of encoders, `l2r-runtime encode`: frames of an environment, and an autoencoder that learns from them.

Not here: the encoders as a run uses them (`runtime.rl.encoders`).
"""
