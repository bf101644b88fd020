"""The caller's own terminal while it belongs to a process of a run. Screens of the app are in ``ui``."""
