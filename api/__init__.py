"""What others build on: the Python API, the pytest plugin, callbacks of trainers, notebooks."""
