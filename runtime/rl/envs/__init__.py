"""Environments, vectorised over copies."""
