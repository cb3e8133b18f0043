"""The virtual GPU: the unmodified script on this machine's CPU, its CUDA memory simulated."""
