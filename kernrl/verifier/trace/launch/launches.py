"""Records Triton launches instead of making them: specialisation, grid, and arguments as views and scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton

from kernrl.verifier.base import compat
from kernrl.verifier.plan.plan import Arg, AtenNode, KernelSource, LaunchNode, Node, Special, TensorRef, Variant
from kernrl.verifier.plan.ttir import access
from kernrl.verifier.trace.launch import host_descriptors
from kernrl.verifier.trace.launch.launch_result import LaunchResult
from kernrl.verifier.trace.recorder import FAKE_ADDRESS_BITS, Recorder, exact
from kernrl.verifier.trace.state import guards
from kernrl.verifier.trace.state.ownership import is_own_function
from kernrl.verifier.trace.untraceable import Untraceable

_KEPT_OPTIONS = ("maxnreg", "enable_fp_fusion")
_LAUNCH_OPTIONS = frozenset(("num_warps", "num_stages", "num_ctas", "debug", *_KEPT_OPTIONS))
MAX_CONFIGS = 64
_LIBRARIES = ("torch", "triton")
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))


class Launches:
    """The launches of one candidate. Its input sets share specialisations, so each is lowered once."""

    def __init__(self, target: compat.GPUTarget) -> None:
        self.target = target
        self.recorder = Recorder()
        self.kernels: list[KernelSource] = []
        """Kernels of the current input set, in the order of its plan."""
        self._numbers: dict[tuple[compat.ById, str], int] = {}
        self._lowered: dict[tuple[compat.ById, str], KernelSource] = {}
        self._texts: dict[tuple[compat.ById, str], str] = {}
        """TTIR by function and specialisation, leaving out the divisibility of its arguments."""
        self._standard: Any = None
        """Launch options of which none is given."""
        self._collecting: list[Variant] | None = None
        self._tuned: dict[int, tuple[Any, list[LaunchNode]]] = {}
        """By autotuner: the first configuration that compiled at its last launch, and its launches in this recording."""
        self._pinned: set[int] = set()
        """Autotuners whose `best_config` the candidate reads: they get no choice, since its code depends on it."""

    def begin(self, recorder: Recorder) -> None:
        """Start the next input set."""
        self.recorder, self.kernels, self._numbers, self._collecting, self._tuned = recorder, [], {}, None, {}

    def install(self) -> None:
        """Replace the `run` methods of Triton's function and autotuner classes, for good."""
        launches = self

        def run(fn: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> LaunchResult:
            with compat.no_torch_functions():
                return launches.launch(fn, args, None if warmup else grid, kwargs)

        def tune(tuner: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> LaunchResult | None:
            return launches.autotune(tuner, args, kwargs | {"grid": grid, "warmup": warmup})

        def best(tuner: Any) -> Any:
            return launches.best_config(tuner)

        compat.replace_run(run, tune, best)
        compat.guard_kernels(_refuse_attribute)

    def launch(self, fn: Any, args: Any, grid: Any, kwargs: Mapping[str, Any]) -> LaunchResult:
        """Record one launch, or one variant of an autotuned one; only compile it if there is no grid."""
        self.check_kernel(fn)
        home = str(fn.fn.__globals__.get("__name__"))
        if home.partition(".")[0] in _LIBRARIES:
            raise Untraceable(f"{fn.__name__} is a kernel of {home}: launch kernels that you write yourself")
        if fn.pre_run_hooks:
            raise Untraceable(f"{fn.__name__} has a pre_run_hook: do the work in forward()")
        compat.check_globals(fn)
        special = compat.specialise(fn, args, kwargs)
        if grid is None:
            self._kernel(fn, special)
        else:
            self._record(fn, special, special.bound, grid)
        options = {name: value for name, value in kwargs.items() if name not in special.signature}
        return LaunchResult(self, fn, special, options)

    @staticmethod
    def check_kernel(fn: Any) -> None:
        """Raise Untraceable where another launch than the recorded one may run in use."""
        if type(fn).__module__.startswith("triton.experimental.gluon"):
            raise Untraceable(f"{fn.__name__} is a Gluon kernel, which is not traced: write it with triton.language")
        if odd := compat.odd_kernel(fn):
            raise Untraceable(f"the {odd} of {fn.__name__} is not the one that Triton made: leave its objects as they are")

    def relaunch(self, launched: LaunchResult, args: Any, grid: Any) -> None:
        """Record a launch of a kernel that was compiled for earlier arguments."""
        with compat.no_torch_functions():
            special = compat.specialise(launched.fn, launched.with_constants(args), launched.options)
            launched.check_fits(special)
            self._record(launched.fn, launched.special, special.bound, grid)

    def kernel_of(self, launched: LaunchResult) -> KernelSource:
        """The kernel that a launch compiled."""
        return self._kernel(launched.fn, launched.special)

    def _record(self, fn: Any, special: compat.Specialised, bound: Mapping[str, Any], grid: Any) -> None:
        if callable(grid):
            grid = grid(bound)
        extent = _extent(grid)
        if 0 in extent:
            return
        values = {
            name: self._value(name, kind, value)
            for parameter, kinds in special.signature.items()
            for name, kind, value in _parts(parameter, kinds, bound[parameter])
        }
        variant = Variant(self._number(fn, special), extent, values)  # pyright: ignore[reportArgumentType]
        if self._collecting is None:
            self.recorder.record(LaunchNode((variant,)))
        else:
            self._collecting.append(variant)

    def autotune(self, tuner: Any, args: Any, kwargs: dict[str, Any]) -> LaunchResult | None:
        """Record every configuration as a variant of one launch; those that do not compile are left out."""
        self._check_tuner(tuner)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        start = len(self.recorder.nodes)
        configs = tuner.prune_configs({k: v for k, v in kwargs.items() if k not in ("grid", "warmup")})
        if len(self.recorder.nodes) > start:
            raise Untraceable("prune_configs_by works on tensors, and only the first launch calls it: do that in forward()")
        if len(configs) > MAX_CONFIGS:
            raise Untraceable(f"{len(configs)} autotune configs: keep at most {MAX_CONFIGS}")
        failure = None
        compiled: list[tuple[Any, LaunchResult]] = []
        prepared: list[list[Node]] = []
        """What each compiled configuration's hook does to tensors before the launch."""
        self._collecting = []
        try:
            for config in configs:
                chosen = config.all_kwargs()
                hooked = self._hooked(config, {**tuner.nargs, **kwargs, **chosen})
                try:
                    compiled.append((config, tuner.fn.run(*args, **kwargs, **chosen)))
                    prepared.append(hooked)
                except triton.compiler.errors.CompilationError as error:
                    failure = failure or error
                if compiled and id(tuner) in self._pinned:
                    break
            variants = tuple(self._collecting)
        finally:
            self._collecting = None
        if not compiled:
            raise failure or Untraceable("autotune is left without a config")
        if variants:
            hooked = self._agreed(prepared, variants)
            if len(configs) > 1:
                self._check_tuning(tuner, variants, hooked)
            for node in hooked:
                self.recorder.record(node)
        config, launched = compiled[0]
        nodes = self._tuned.get(id(tuner), (None, []))[1]
        self._tuned[id(tuner)] = config, nodes
        if variants:
            nodes.append(LaunchNode(variants))
            self.recorder.record(nodes[-1])
        return launched

    @staticmethod
    def _check_tuner(tuner: Any) -> None:
        """Refuse what runs, or is chosen, in use alone: where the tuner tries its configurations."""
        name = tuner.base_fn.__name__
        if type(tuner.cache) is not dict or tuner.cache:
            raise Untraceable(f"the code fills or replaces the cache of {name}'s autotuner: leave Triton's objects as they are")
        measures = tuner._do_bench
        if tuner.user_defined_pre_hook or tuner.user_defined_post_hook or (measures and is_own_function(measures, "candidate")):
            raise Untraceable(
                f"{name} is autotuned with a hook or a benchmark of its own, which runs only while it is tuned: "
                "use reset_to_zero or restore_value"
            )

    def _hooked(self, config: Any, arguments: dict[str, Any]) -> list[Node]:
        """Call a configuration's pre_hook, such as one that zeroes what the kernel adds to; the operations that it records."""
        start = len(self.recorder.nodes)
        if config.pre_hook is not None:
            config.pre_hook(arguments)
        found = self.recorder.nodes[start:]
        del self.recorder.nodes[start:]
        return found

    def _agreed(self, prepared: Sequence[list[Node]], variants: Sequence[Variant]) -> list[Node]:
        """What to do before the launch, whichever configuration is taken."""
        hooked = max(prepared, key=len)
        touched = {o.storage for node in hooked if isinstance(node, AtenNode) for o in node.outputs if o is not None}
        for nodes, variant in zip(prepared, variants, strict=True):
            # one without the hook may overwrite what that fills, and finds other numbers there in use
            if nodes != hooked and (nodes or touched & self._accessed(variant)[0]):
                raise Untraceable("pre_hooks of autotune configs do different things to tensors: give each config the same one")
        return hooked

    def _accessed(self, variant: Variant) -> tuple[set[int], set[int]]:
        """Storages that a launch reads, and those that it writes."""
        touched, values = access(self.kernels[variant.kernel].ttir), list(variant.args.values())
        read, written = (
            {v.storage for i, v in enumerate(values) if isinstance(v, TensorRef) and i in side}
            for side in (touched.reads, touched.writes)
        )
        return read, written

    def _check_tuning(self, tuner: Any, variants: Sequence[Variant], hooked: Sequence[Node]) -> None:
        """Refuse what is wrong after the tuner's own runs, which come before the first launch in use."""
        again = {o.storage for node in hooked if isinstance(node, AtenNode) for o in node.outputs if o is not None}
        for variant in variants:
            read, written = self._accessed(variant)
            values = {n: v.storage for n, v in variant.args.items() if isinstance(v, TensorRef)}
            kept = {s for n, s in values.items() if n in (*tuner.restore_value, *tuner.reset_to_zero)} | again
            for name, storage in values.items():
                if storage in (read & written) - kept:
                    function = self.kernels[variant.kernel].function
                    raise Untraceable(
                        f"{function} is autotuned and changes {name}, which it also reads, so that trying configurations "
                        f'changes the result: add restore_value=["{name}"] or reset_to_zero=["{name}"]'
                    )

    def best_config(self, tuner: Any) -> Any:
        """What `kernel.best_config` gives: the first configuration that compiles.

        Whoever reads it decides by it, so from then on this autotuner's launches, past ones included, have no other.
        """
        if id(tuner) not in self._tuned:
            raise AttributeError("best_config is known after the first launch")
        config, nodes = self._tuned[id(tuner)]
        self._pinned.add(id(tuner))
        single = {id(node): LaunchNode(node.variants[:1]) for node in nodes}
        self.recorder.nodes[:] = [single.get(id(node), node) for node in self.recorder.nodes]
        self._tuned[id(tuner)] = config, []
        return config

    def _number(self, fn: Any, special: compat.Specialised) -> int:
        key = compat.ById(fn), special.key
        if key not in self._numbers:
            kernel = self._kernel(fn, special)
            self._numbers[key] = len(self.kernels)
            self.kernels.append(kernel)
        return self._numbers[key]

    def _kernel(self, fn: Any, special: compat.Specialised) -> KernelSource:
        key = compat.ById(fn), special.key
        if key not in self._lowered:
            self._lowered[key] = self._lower(fn, special)
        return self._lowered[key]

    def _lower(self, fn: Any, special: compat.Specialised) -> KernelSource:
        options = special.options
        self._standard = self._standard or special.backend.parse_options({})
        odd = [k for k, v in vars(options).items() if k not in _LAUNCH_OPTIONS and v != getattr(self._standard, k)]
        if odd:
            raise Untraceable(f"the launch option {odd[0]} is not supported: leave it out")
        if options.num_ctas > 1 and int(self.target.arch) < 90:
            raise Untraceable(f"num_ctas={options.num_ctas} needs a GPU with clusters (sm_90 or later): leave it out")
        names = list(special.signature)
        return KernelSource(
            function=fn.__name__,
            ttir=self._ttir(fn, special),
            signature={name: kind for k, kinds in special.signature.items() for name, kind, _ in _parts(k, kinds)},
            constexprs={".".join((names[i], *map(str, rest))): _constant(v) for (i, *rest), v in special.constexprs.items()},
            num_warps=options.num_warps,
            num_stages=options.num_stages,
            num_ctas=options.num_ctas,
            options={name: getattr(options, name) for name in _KEPT_OPTIONS},
        )

    def _ttir(self, fn: Any, special: compat.Specialised) -> str:
        """The kernel's TTIR. Input sets mostly differ in divisibility, and generating IR takes most of a trace."""
        key = compat.ById(fn), f"{special.signature}{special.constexprs}{special.options}"
        text = compat.rehint(self._texts[key], special) if key in self._texts else None
        if text is None:
            text = self._texts[key] = host_descriptors.made_in_kernel(compat.make_ttir(fn, special, self.target), self.target)
        return text

    def _value(self, name: str, kind: str, value: Any) -> Arg:
        if kind.startswith("*"):
            tensor = compat.tensor_of(value)
            if type(tensor) not in _TENSORS:
                raise Untraceable(f"the launch argument {name} is a {type(value).__name__}: pass a plain tensor")
            if hidden := [own for own in vars(tensor) if hasattr(torch.Tensor, own)]:
                raise Untraceable(f"the launch argument {name} has a {hidden[0]} of its own: pass a plain tensor")
            if self.recorder.is_cpu(tensor):
                raise ValueError(
                    f"Pointer argument {name} cannot be accessed from Triton (cpu tensor): make it with device=x.device"
                )
            return self.recorder.ref(tensor)
        if isinstance(value, bool):
            return value
        if isinstance(value, float):
            return _finite(exact(value))
        number = exact(operator.index(value))
        if number >> FAKE_ADDRESS_BITS == 1:
            raise Untraceable(f"the launch argument {name} is an address: pass the tensor itself")
        return number


def _parts(name: str, kind: Any, value: Any = None) -> Iterator[tuple[str, str, Any]]:
    """(name, Triton type, value) of a parameter's runtime arguments: a tuple's or a descriptor's parts, without constexprs."""
    if isinstance(kind, str) and kind.startswith("tensordesc"):
        yield from host_descriptors.parts(name, kind, value)
    elif not isinstance(kind, str):
        for i, part in enumerate(kind):
            yield from _parts(f"{name}.{i}", part, value[i] if value is not None else None)
    elif kind != "constexpr":
        yield name, kind, value


def _extent(grid: Any) -> tuple[int, int, int]:
    """A grid's programs along three axes, read as Triton reads it. Raises ValueError for what is no grid."""
    length = len(grid)
    if not 1 <= length <= 3:
        raise ValueError(f"the grid has {length} numbers: give one to three")
    found = [exact(operator.index(grid[i])) for i in range(length)] + [1] * (3 - length)
    if min(found) < 0:
        raise ValueError(f"the grid {tuple(found)} has a negative number of programs")
    return found[0], found[1], found[2]


def _refuse_attribute(name: str) -> None:
    if guards.asked_by_candidate(3):
        raise Untraceable(f"a kernel's {name} decides what runs in its place: leave Triton's objects as they are")


def _finite(value: float) -> Arg:
    return value if abs(value) < float("inf") else Special("float", repr(value))


def _constant(value: Any) -> Arg:
    """A constexpr as the plan stores it."""
    value = exact(getattr(value, "value", value))
    if isinstance(value, float):
        return _finite(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple | list):
        return tuple(_constant(v) for v in value)
    if isinstance(value, triton.language.dtype):
        return Special("triton_dtype", str(value))
    if isinstance(value, Callable):
        return Special("function", getattr(value, "__name__", "?"))
    raise Untraceable(f"a constexpr argument of type {type(value).__name__} cannot be recorded")
