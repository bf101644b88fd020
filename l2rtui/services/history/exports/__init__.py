"""Copies of recorded runs in other trackers: MLflow and Weights & Biases, if they are installed.

The record stays the source: nothing is read back. Each library has one module, which imports it at its first use.
"""
