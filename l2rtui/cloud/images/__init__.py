"""Container images: built by the Docker Engine or BuildKit, stored in registries."""
