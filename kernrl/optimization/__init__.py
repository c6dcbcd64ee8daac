"""Search for a faster form of a module: candidates within a budget, the file that comes of them, and models part by part."""
