"""Steps of a run (`data → train → evaluate`): each waits for those before it, and leaves a mark when it is done."""
