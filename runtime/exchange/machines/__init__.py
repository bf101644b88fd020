"""Both sides of the exchange as state machines: events in, instructions out; no I/O, no clock."""
