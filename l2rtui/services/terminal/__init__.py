"""The caller's terminal while a process of a run uses it. Screens of the app are in ``ui``."""
