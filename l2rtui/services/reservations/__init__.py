"""Reservations of slots: made and ended by the app and the commands. The rules are in the domain."""
