"""Pictures of the app, made by driving it: ``screenshots/``. Not a test; `make screenshots` runs it."""
