"""The random Graphs that nano learns from: `draw_graphs.py`, and what is drawn in them, by kind."""
