"""Data sets as the programs read them; bringing them to a volume is `runtime.jobs.fetch`."""
