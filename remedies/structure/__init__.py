"""The model's structure, read from the frames of a snapshot that oomdoc did not record."""
