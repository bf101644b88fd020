"""Floor 2: use cases over asyncio, shared by the app and the headless verbs."""
