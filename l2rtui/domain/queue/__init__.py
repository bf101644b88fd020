"""Queue of runs that wait for slots: its order, fairness between owners, admission, forecast.

Pure values and functions; the file that holds a queue and the process that keeps it are elsewhere.
"""
