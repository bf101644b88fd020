"""Pictures of the app, made by driving it: ``screenshots/``. No test; `make screenshots` runs it."""
