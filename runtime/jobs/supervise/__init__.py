"""Supervisor of the workers of one pod: equal processes that share the GPU which the device plugin gave the pod."""
