"""The policy loss of tokens whose log-probs exist: every variant in plain PyTorch, and in Triton."""
