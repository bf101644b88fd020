"""Reservations of slots for a person and a time: their rules and their text. Where they are stored is a backend's.

A reserved slot is ``SlotState.RESERVED`` for everybody but its holder, for whom it stays free (``ledger``).
"""
