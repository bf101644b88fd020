"""Methods that learn from a replay of transitions: DQN, TD3, both forms of soft actor-critic, and their parts.

The replay itself is in `runtime.rl.buffers`, the settings are in `runtime.base.methods`.
"""
