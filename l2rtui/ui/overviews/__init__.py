"""Overviews: experiments, owners, past runs; enter opens the objects behind a row.

They compute from data that the app already has; only the history reads its file. ``ui.home`` performs the opening
of a row.
"""
