"""Home screen: layout and content of its panes, navigation, and one object for each group of actions.

Dialogs are in ``ui.dialogs``, the widgets in ``ui.widgets``; ``screen`` connects them.
"""
