"""Image classification with distributed data parallelism: the trainer of elastic jobs, and their evaluation."""
