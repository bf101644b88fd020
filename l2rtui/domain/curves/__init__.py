"""Curves of runs over their full length: storage, resampling, statistics over seeds, scales, export.

Pure: no terminal, no files. Screens draw these values (``ui.widgets.charts``); commands write them to files.
"""
