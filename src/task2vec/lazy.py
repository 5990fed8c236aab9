"""Public names that are imported on first use (PEP 562), so that a package's `__init__` costs nothing."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import cast


def lazy_names(package: str, modules: Mapping[str, str] | None = None) -> Callable[[str], object]:
    """The `__getattr__` of a package: `modules` maps each public name to the module below it that defines it.

    None reads them from the package's own imports under `if TYPE_CHECKING:`, so that they are written down once.
    """
    table = _read_imports(package) if modules is None else {name: f"{package}.{modules[name]}" for name in modules}

    def resolve(name: str) -> object:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(table[name])
        return import_module(f"{package}.{name}") if table[name] == package else getattr(module, name)

    return resolve


def _read_imports(package: str) -> dict[str, str]:
    """The module of each name that the source of `package` imports for type checkers only."""
    source = cast(ast.Module, ast.parse(_read_source(package)))
    blocks = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name: node.module or "" for node in imports for name in node.names}


def _read_source(package: str) -> str:
    spec = find_spec(package)
    source = getattr(spec.loader, "get_source", None) if spec is not None else None
    assert source is not None, f"{package} has no source"
    return source(package)
