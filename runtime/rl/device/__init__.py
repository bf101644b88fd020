"""Accelerator's side of learning: captured functions, memory, copies; on a CPU the same code runs eagerly.

Knows torch and no algorithm.
"""
