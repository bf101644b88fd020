"""The accelerator: captured functions, memory, copies. On a CPU the same code runs eagerly.

Depends on torch and on no algorithm.
"""
