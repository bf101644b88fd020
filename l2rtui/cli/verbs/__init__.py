"""What each verb does: ``run_VERB(session)``, imported when it is called."""
