"""Policies with memory: the cell in NumPy for workers and in torch for the learner, and the methods that unroll it.

Methods without memory, and what they share with these, are in the folder above.
"""
