"""Whisper (Radford et al., 2022) in MLX, for batches whose rows come and go."""
