"""Selection of rows by what a user types: the filter language of all tables, label selectors, names and states.

Pure, and the same for app and commands; what a row consists of is its caller's.
"""
