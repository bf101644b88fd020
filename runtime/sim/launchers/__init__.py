"""Ways to run a simulator: subprocess, container, sidecar; its ports, and its end as a failure."""
