"""Floor 3: the terminal app; the only code that imports textual."""
