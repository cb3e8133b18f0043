"""The recording in the formats of other tools: traces, flame graphs, tables, snapshots."""
