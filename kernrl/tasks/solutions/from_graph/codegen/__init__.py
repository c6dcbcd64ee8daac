"""The text of kernels: indices, tiles, bodies, matrix products, and their launches."""
