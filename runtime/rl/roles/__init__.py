"""Processes of a run: learner, worker, evaluator, and their parts."""
