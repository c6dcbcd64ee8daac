"""Kernels over rows of logits: log-probs, and the loss and its gradient of a whole vocabulary or of a rank's share."""
