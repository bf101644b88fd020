"""Programs beside reinforcement learning: elastic jobs, steps, fetches, classification, parameter servers."""
