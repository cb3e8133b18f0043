"""Turn a run into a snapshot: on a CUDA device, or on the virtual GPU."""
