"""Reinforcement learning: algorithms, buffers, environments, checkpoints and the roles that run them."""
