"""State behind the screens: context, snapshot index, streams, placement draft, undo window.

No widget and no screen.
"""
