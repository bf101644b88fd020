"""Widgets: values in, messages out."""
