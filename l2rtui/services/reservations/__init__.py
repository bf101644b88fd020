"""Reservations of slots, as the app and the commands make and end them. The rules are in the domain."""
