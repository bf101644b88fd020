"""Processes of a run: learner, worker, evaluator, and what each is made of."""
