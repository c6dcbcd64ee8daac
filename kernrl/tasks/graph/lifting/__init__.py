"""From a module to its Graph: exported under fake tensors, its ATen calls read one by one."""
