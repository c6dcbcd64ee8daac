"""A constructor's arguments in order, of what a task's `get_init_inputs` returns.

The function stands in every `best.py`, too, so it names no type and imports what it needs.
"""

from __future__ import annotations


def in_order(model, given):
    """The arguments of `model`, its class or what else makes the module, in order.

    `given` are the arguments in order; or a dict of them by name; or both, `[[], {"width": 4}]`, as in KernelBook's tasks.
    Raises TypeError where an argument is missing, unknown, or can be given by name alone.
    """
    import inspect

    signature = inspect.signature(model)

    def fits(*arguments, **by_name):
        try:
            signature.bind(*arguments, **by_name)
        except TypeError:
            return False
        return True

    if isinstance(given, dict):
        first, named = [], given
    elif len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        first, named = given
        if first and fits(*given) and not (named and fits(*first, **named)):
            return given  # a list and a dict are the two arguments
    else:
        return given
    bound = signature.bind(*first, **named)
    names, kinds = list(bound.arguments), {name: p.kind for name, p in signature.parameters.items()}
    for name in names:
        if kinds[name] in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"{name} can be given by name alone, and candidates get their arguments in order")
    bound.apply_defaults()
    last = max((list(kinds).index(name) for name in names), default=-1)
    return list(bound.args if inspect.Parameter.VAR_POSITIONAL in map(kinds.get, names) else bound.args[: last + 1])
