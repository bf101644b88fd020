"""Downloads data to a run's volume from the web, a bucket or a file: verified, completely or not at all."""
