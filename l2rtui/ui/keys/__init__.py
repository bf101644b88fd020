"""The table of keys, everything derived from it (bindings, help, docs), and the order in which keys are
delivered.
"""
