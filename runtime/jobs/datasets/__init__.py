"""Readers of data sets; `runtime.jobs.fetch` downloads data sets to a volume."""
