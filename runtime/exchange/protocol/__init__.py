"""Messages, their frames, and the schema of segments."""
