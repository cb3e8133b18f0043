"""Attribution (bytes to category) and one file per cause."""
