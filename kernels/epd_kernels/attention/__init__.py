"""Windowed attention over quantised latents: the sliding window, the selected entries and a sink in one softmax."""
