"""From a Graph back to PyTorch: in one of many hands, or as the plain reference of a task."""
