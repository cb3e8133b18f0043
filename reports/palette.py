"""One colour per part of a device's memory, the same in every renderer."""

# Okabe and Ito's palette, which colour-blind readers can tell apart, and greys for what no tensor holds.
COLORS = {
    "parameter": "#0072b2",
    "buffer": "#56b4e9",
    "gradient": "#009e73",
    "optimizer_state": "#cc79a7",
    "activation": "#e69f00",
    "input": "#8f6bb3",
    "temporary": "#d55e00",
    "workspace": "#a6761d",
    "communication": "#66a61e",
    "autocast_cache": "#b2df8a",
    "kv_cache": "#fb9a99",
    "unknown": "#999999",
    "rounding": "#777777",
    "reusable": "#6a6a6a",
    "fragmented": "#c0392b",
    "outside": "#555555",
    "free": "#3a3a3a",
}
