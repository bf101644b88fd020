"""History of runs, which outlives them: the fields of a record, and the differences between two records.

Pure: no files and no clock. ``services.history`` stores these values.
"""
