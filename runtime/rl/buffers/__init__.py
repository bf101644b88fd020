"""Replay, rollout and gradient buffers."""
