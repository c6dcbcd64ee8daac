"""Worked Triton solutions written from a task's Graph, whoever wrote its module."""
