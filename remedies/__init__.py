"""One file per remedy; the planner; the cost model; config adapters; application at run time."""
