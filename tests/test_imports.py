"""The shape of the house: imports point down only, the command line is light, and tests lie where what they test lies and ask
for what is public."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support import ROOT, TESTS

PACKAGE = ROOT / "kernrl"

FLOORS = [
    {"cli"},
    {"stages", "integrations"},
    {"optimization"},
    {"training"},
    {"runs"},
    {"rollouts", "reports", "service"},
    {"policy", "verifier"},
    {"kernels", "tasks"},
    {"base"},
]
"""Rooms by floor, the highest first. A room may import itself and the rooms of lower floors."""

VERIFIER_FLOORS = [
    {"root"},
    {"pool"},
    {"replay", "interpret"},
    {"trace", "compile", "judge"},
    {"plan", "sandbox"},
    {"rpc"},
    {"base"},
]
"""Rooms inside the verifier, alike; `root` is the folder's own files."""

MOST_ROOT_FILES = 8

SETTERS = {"setattr", "getattr", "delattr"}

CASES = {"exploits", "fixture_tasks", "foreign", "honest", "quietly_wrong"}
TESTS_OF_NO_FOLDER = CASES | {"gpu", "scripts", "support"}
"""Folders of tests/ that mirror no folder of kernrl/: tasks, candidates, helpers, and tests of other things."""

PRIVATE_IN_TESTS = {
    # Triton kernels, compiled for GPUs that are not here, or run by the interpreter where a caller gets the reference
    "kernels/test_losses_interpreted.py": {
        *("_loss_kernel", "_stats_kernel", "_gradient_kernel", "_forward_kernel", "_backward_kernel"),
        *("_tokens_kernel", "_count_kernel", "_shares_kernel", "_scale_kernel", "_resident_kernel"),
    },
    "support/interpreted_kernels.py": {"_RatioKl"},
    # what calls leave behind for the next: compiled kernels, and plans
    "gpu/test_kernels_gpu.py": {"_resident_kernel"},
    "gpu/test_tokens_gpu.py": {"_plans"},
    # functions of best.py, whose public name is the candidate's
    "optimization/results/test_best_file.py": {"_exactly", "_reference"},
    # torch's, of which kernrl has one of the same name
    "tasks/test_foreign.py": {"_version"},
    "verifier/base/test_compat.py": {"_softmax"},
}
"""Test file → the private names that it may ask for."""

ROOM_OF_MODULE = {"__main__": "cli", "cli": "cli", "command": "cli", "testing": "integrations"} | dict.fromkeys(
    (
        "__init__",
        "__version__",
        "config",
        "console",
        "errors",
        "files",
        "http_client",
        "hub",
        "settings",
        "signals",
        "syntax",
        "user_code",
    ),
    "base",
)
"""Module at the package's top → its room; every folder is a room of its own name."""


def room_of(dotted: str) -> str:
    """`kernrl.tasks.rows` → `tasks`."""
    parts = dotted.split(".")
    top = parts[1] if len(parts) > 1 else "__init__"
    return ROOM_OF_MODULE.get(top, top)


def statements(source: str) -> Iterator[ast.AST]:
    """Every statement, wherever in the text; expressions, which are most of it, hold none."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += inside if isinstance(inside := getattr(node, name, ()), list) else ()


def imported_names(source: str, dotted: str) -> Iterator[str]:
    """What the module `dotted` imports of kernrl, wherever in its text: modules, and names in modules."""
    for node in statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "kernrl")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*dotted.split(".")[: -node.level], *base.split(".")]).rstrip(".")
            if base.split(".")[0] == "kernrl":
                yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module → the modules that it imports anywhere in its text, under `TYPE_CHECKING` too."""
    graph: dict[str, set[str]] = {}
    for dotted, path in modules.items():
        inside = f"{dotted}.__init__" if path.name == "__init__.py" else dotted
        names = set(imported_names(path.read_text(), inside))
        # `from kernrl import console` imports a module, `from kernrl import __version__` the package
        graph[dotted] = {name if name in modules else name.rpartition(".")[0] for name in names} & modules.keys() - {dotted}
    return graph


def sources() -> dict[str, Path]:
    """Module → its file; a package under its own name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {".".join(["kernrl", *p.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): p for p in paths}


@functools.cache
def graph_of_package() -> dict[str, set[str]]:
    return import_graph(sources())


def may_import(room: str, other: str, floors: list[set[str]] = FLOORS) -> bool:
    floor = {name: height for height, rooms in enumerate(floors) for name in rooms}
    return room == other or floor[other] > floor[room]


def verifier_room_of(dotted: str) -> str:
    """`kernrl.verifier.plan.checks` → `plan`, `kernrl.verifier.funnel` → `root`."""
    parts = dotted.split(".")
    return parts[2] if len(parts) > 2 and (PACKAGE / "verifier" / parts[2]).is_dir() else "root"


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another, directly or by way of others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            for other in graph[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        reached[start] = seen
    groups = {frozenset(b for b in graph if b in reached[a] and a in reached[b]) for a in graph}
    return sorted(sorted(group) for group in groups if group)


@pytest.mark.slow
def test_imports_point_down() -> None:
    wrong = [
        f"{dotted} ({room_of(dotted)}) may not import {target}"
        for dotted, targets in graph_of_package().items()
        for target in sorted(targets)
        if not may_import(room_of(dotted), room_of(target))
    ]
    assert not wrong


def test_imports_inside_the_verifier_point_down() -> None:
    inside = {d: targets for d, targets in graph_of_package().items() if d.startswith("kernrl.verifier")}
    wrong = [
        f"{dotted} ({verifier_room_of(dotted)}) may not import {target}"
        for dotted, targets in inside.items()
        for target in sorted(targets & inside.keys())
        if not may_import(verifier_room_of(dotted), verifier_room_of(target), VERIFIER_FLOORS)
    ]
    assert len(inside) > 50
    assert not wrong


def test_verifier_keeps_its_files_in_rooms() -> None:
    folder = PACKAGE / "verifier"
    rooms = {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == set().union(*VERIFIER_FLOORS) - {"root"}
    assert len(list(folder.glob("*.py"))) <= MOST_ROOT_FILES


def test_names_of_files_are_not_doubled() -> None:
    """Two files of one name are told apart only by their folders. `config/x.py` holds the settings of what `x.py` does, and so
    does `config/shared/x.py`."""
    folders: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] != "config" and path.name != "__init__.py":
            folders.setdefault(path.name, []).append(str(path.relative_to(PACKAGE).parent))
    assert {name: where for name, where in folders.items() if len(where) > 1} == {}


def test_no_modules_import_one_another() -> None:
    assert cycles(graph_of_package()) == []


def test_cycles_are_found(tmp_path: Path) -> None:
    texts = {
        "kernrl.a": "from kernrl import b\n",
        "kernrl.b": "def late():\n    from kernrl.room.c import thing\n",
        "kernrl.room": "",
        "kernrl.room.c": "if TYPE_CHECKING:\n    from ..a import thing\n",
        "kernrl.d": "import kernrl.a\n",
        "kernrl.e": "from kernrl.e import itself\n",
    }
    modules = {}
    for dotted, text in texts.items():
        modules[dotted] = tmp_path / (f"{dotted}/__init__.py" if dotted == "kernrl.room" else f"{dotted}.py")
        modules[dotted].parent.mkdir(exist_ok=True)
        modules[dotted].write_text(text)
    assert cycles(import_graph(modules)) == [["kernrl.a", "kernrl.b", "kernrl.room.c"]]


def test_rule_sees_every_form_of_import() -> None:
    source = (
        "import kernrl.stages.tasks\n"
        "from kernrl import cli\n"
        "from kernrl import __version__\n"
        "from ..policy import nano\n"
        "def late():\n    from kernrl.verifier.plan.plan import Plan\n"
        "try:\n    import torch\nexcept ImportError:\n    import kernrl.stages.sft\nelse:\n    pass\n"
        "finally:\n    with x:\n        import kernrl.files\n"
    )
    found = set(imported_names(source, "kernrl.tasks.rows"))
    assert found == {
        "kernrl.cli",
        "kernrl.__version__",
        "kernrl.files",
        "kernrl.policy.nano",
        "kernrl.stages.sft",
        "kernrl.stages.tasks",
        "kernrl.verifier.plan.plan.Plan",
    }
    assert [name for name in sorted(found) if may_import("tasks", room_of(name))] == ["kernrl.__version__", "kernrl.files"]


@pytest.mark.slow
def test_test_files_do_not_import_each_other() -> None:
    """What tests share lies in `tests/support/` and in conftest.py."""
    wrong = []
    for path in sorted(TESTS.rglob("test_*.py")):
        nodes = list(statements(path.read_text()))
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        wrong += [(path.name, name) for name in names if any(part.startswith("test_") for part in name.split("."))]
    assert not wrong


def homes_of_tests() -> dict[str, set[Path]]:
    """`x` → the folders of tests/ where test_x.py may lie: beside the module of that name, or inside the package."""
    homes: dict[str, set[Path]] = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        homes.setdefault(inside.parent.name if path.name == "__init__.py" else path.stem, set()).add(inside.parent)
    return homes


def out_of_place(files: list[Path], homes: Mapping[str, set[Path]]) -> list[Path]:
    """Of test files, by their paths below tests/: those in a folder of no package, or in another than their module's."""
    mirrored = [path for path in files if path.parts[0] not in TESTS_OF_NO_FOLDER]
    packages = set().union(*homes.values()) | {Path()}
    at_home = {path: homes.get(path.stem.removeprefix("test_"), {path.parent}) for path in mirrored}
    return [path for path in mirrored if path.parent not in packages or path.parent not in at_home[path]]


def test_tests_lie_where_what_they_test_lies() -> None:
    files = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    assert len(files) > 100
    assert out_of_place(files, homes_of_tests()) == []
    assert {path.name for path in TESTS.iterdir() if path.is_dir()} >= TESTS_OF_NO_FOLDER


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("rollouts/engines/test_server_engine.py", True),
        ("rollouts/test_server_engine.py", False),
        ("policy/test_policy.py", True),  # of the package
        ("stages/test_serve.py", True),  # kernrl/stages/serve.py; its settings are kernrl/config/serve.py
        ("service/test_serve.py", False),
        ("test_settings.py", True),
        ("rollouts/test_anything_else.py", True),
        ("helpers/test_anything_else.py", False),
        ("gpu/test_settings.py", True),
    ],
)
def test_a_test_elsewhere_is_seen(path: str, fits: bool) -> None:
    assert (not out_of_place([Path(path)], homes_of_tests())) is fits


def is_private(name: str) -> bool:
    return len(name) > 1 and name[0] == "_" != name[1]


def root_of(node: ast.expr) -> str:
    """`a` of `a.b[0].c`; '' where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def private_names(source: str) -> set[str]:
    """What a module, its classes and their objects keep to themselves."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_of(node) == "self":
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def private_uses(source: str) -> set[str]:
    """Private names that a test imports, asks of objects, or replaces.

    Not those of other packages, and not an object's own, by `self`, unless its class is derived from one of kernrl's.
    """
    found: set[str] = set()
    nodes = list(ast.walk(ast.parse(source)))
    package: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
                package[(alias.asname or alias.name).split(".")[0]] = module.split(".")[0]
    own = {
        id(node)
        for kind in nodes
        if isinstance(kind, ast.ClassDef) and not any(package.get(root_of(base)) == "kernrl" for base in kind.bases)
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kernrl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and id(node) not in own:
            found |= {node.attr} if package.get(root_of(node), "kernrl") in ("kernrl", "support") else set()
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # vars(thing)["_name"]
            found.add(str(node.slice.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SETTERS:
            texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found |= {name for text in texts for name in text.split(".")}  # "_name", or "kernrl.a.module._name"
    return {name for name in found if is_private(name)}


@pytest.mark.slow
def test_tests_ask_for_what_is_public() -> None:
    """What a test may not name has to be seen from outside, or be made public."""
    tests = {path.relative_to(TESTS): path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in CASES}
    uses = {str(short): private_uses(path.read_text()) for short, path in tests.items()}
    asked = set().union(*uses.values())
    texts = [text for path in sources().values() if any(name in (text := path.read_text()) for name in asked)]
    private = set().union(*map(private_names, texts))
    assert {path: names & private for path, names in uses.items() if names & private} == PRIVATE_IN_TESTS


def test_every_way_to_a_private_name_is_seen() -> None:
    source = (
        "import torch\nfrom support import thing\nfrom kernrl.a import B as Thing, _imported\n"
        "torch._C._foreign(torch.x._version)\nthing._asked[0].b\nThing._of_a_class\n"
        "patch.setattr(thing, '_replaced', 1)\npatch.setattr('kernrl.a._replaced_by_path', 1)\nvars(thing)['_by_name']\n"
        "class Own:\n    def f(self):\n        return self._own, self.thing._held\n"
        "class Derived(Thing):\n    def f(self):\n        return self._inherited\n"
    )
    asked = {"_asked", "_by_name", "_held", "_imported", "_inherited", "_of_a_class", "_replaced", "_replaced_by_path"}
    assert private_uses(source) == asked
    stored = "_a = 1\ndef _b():\n    torch._foreign = 2\nclass _C:\n    def f(self):\n        self._d, self.e, __f = 1, 2, 3\n"
    assert private_names(stored) == {"_a", "_b", "_C", "_d"}


def test_rooms_of_one_floor_are_apart() -> None:
    assert not may_import("policy", "verifier")
    assert not may_import("kernels", "tasks")
    assert may_import("stages", "tasks")
    assert not may_import("trace", "interpret", VERIFIER_FLOORS)
    assert not may_import("judge", "replay", VERIFIER_FLOORS)
    assert not may_import("compile", "judge", VERIFIER_FLOORS)
    assert may_import("sandbox", "rpc", VERIFIER_FLOORS)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tasks", "generate", "--help"], []])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("torch", "transformers", "triton", "datasets", "numpy")
    code = (
        "import sys; from kernrl.cli import run; code = run(sys.argv[1:]);"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "kernrl" in done.stdout
