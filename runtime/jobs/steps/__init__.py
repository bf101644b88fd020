"""Steps of a run (`data → train → evaluate`): each waits for the steps before it, and writes a marker when done."""
