"""Queue of runs that wait for slots: its order, fairness between owners, admission, forecast.

Pure values and functions; the file of a queue and the process that maintains it are elsewhere.
"""
