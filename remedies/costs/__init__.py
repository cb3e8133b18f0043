"""What a remedy costs in step time: recomputation, transfers, collectives."""
