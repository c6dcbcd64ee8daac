"""One form for every way to say the same: nodes as they are built, and the rewrites that bring spellings to one."""
