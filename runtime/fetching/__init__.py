"""Bringing data to the volume of a run: from the web, a bucket or a file, checked, whole or not at all."""
