"""The gate: limits of a job, the committed baseline, and what moved against it."""
