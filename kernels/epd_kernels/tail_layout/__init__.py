"""Which rows of a step run the decoder half, where they stand and how far back they may look."""
