"""Learning: networks and updates in torch, and the policy as workers run it in NumPy."""
