"""Classifying images with distributed data parallel: the trainer of elastic jobs, and the evaluation behind it."""
