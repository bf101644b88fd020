"""History of runs that outlives them: the values of a record, and the differences of two.

Pure: no file and no clock. ``services.history`` stores these values.
"""
