"""Selection of rows by user input: the filter language of all tables, label selectors, names and states.

Pure, and shared by app and commands; callers provide the content of a row.
"""
