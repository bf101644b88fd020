"""Checkpoints of a learner: files, background writer, upload, state of the learner."""
