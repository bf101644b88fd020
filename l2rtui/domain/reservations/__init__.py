"""Reservations of slots for a person and a time: their rules and their text. Backends store them.

A reserved slot is ``SlotState.RESERVED`` for everyone but its holder, for whom it stays free (``ledger``).
"""
