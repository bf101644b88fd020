"""Supervisor of the workers in one pod: equal processes that share the GPU allocated by the device plugin."""
