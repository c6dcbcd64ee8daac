"""A Graph as the few kinds of work that kernels are written from."""
