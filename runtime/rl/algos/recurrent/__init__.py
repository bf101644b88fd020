"""Policies with memory: the cell in NumPy for workers and in torch for the learner, and the methods that unroll it.

Methods without memory and the shared code are in the parent folder.
"""
