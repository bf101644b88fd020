"""One module for each verb or group: ``run_VERB(session)``, imported when it is called."""
