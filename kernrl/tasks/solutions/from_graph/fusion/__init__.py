"""Which work goes into one kernel, and what is kept in memory between kernels."""
