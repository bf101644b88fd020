"""Screens: each joins widgets to services."""
