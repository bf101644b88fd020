"""Methods that learn from a replay of transitions: soft actor-critic in both forms, and what they are made of.

Not here: the replay itself (`runtime.rl.buffers`), their settings (`runtime.rl.algos.configs`).
"""
