"""Programs other than reinforcement learning: elastic jobs, steps, fetches, classification, parameter servers."""
