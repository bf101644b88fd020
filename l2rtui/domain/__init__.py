"""Floor 0: frozen values and pure functions. No I/O, no clock, the standard library alone."""
