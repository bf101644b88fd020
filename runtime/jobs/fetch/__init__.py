"""Download of data to a run's volume from the web, a bucket or a file: verified, complete or not at all."""
