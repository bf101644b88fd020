"""Report of an experiment as one HTML page: its values, and the page as text. Pure.

``services.history.report`` collects the records and curves.
"""
