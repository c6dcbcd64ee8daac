"""What nano is asked and answers: the Graph's listing, and the kernels and `forward` of a candidate."""
