"""Report of an experiment as one HTML page: its values, and the page as text. Pure.

Where records and curves come from is in ``services.history.report``.
"""
