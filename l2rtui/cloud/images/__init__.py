"""Container images: built by the Docker Engine or BuildKit, kept in registries."""
