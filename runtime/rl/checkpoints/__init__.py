"""Checkpoints of a learner: files, background writer, upload, and the learner's state."""
