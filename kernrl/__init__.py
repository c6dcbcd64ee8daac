"""Train language models to write fused GPU kernels, with rewards that can be trusted."""

__version__ = "0.1.0"
