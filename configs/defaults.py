"""What is taken where nothing is named. Imports nothing: the pytest plugin reads it in every project."""

DEFAULT_GPU = "a100-80gb"  # of configs/gpus.yaml
