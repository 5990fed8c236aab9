"""Public names that are imported on first use (PEP 562), so that a package's `__init__` costs nothing."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import cast


def lazy_names(package: str) -> Callable[[str], object]:
    """The `__getattr__` of a package, whose public names are its own imports under `if TYPE_CHECKING:`.

    So they are written down once. A name becomes an attribute of the package on first use, unless a module of the
    package has that name.
    """
    table = read_imports(package)

    def resolve(name: str) -> object:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if table[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(table[name]), name)
        if f"{package}.{name}" not in sys.modules:
            setattr(sys.modules[package], name, value)
        return value

    return resolve


@cache
def read_imports(package: str) -> dict[str, str]:
    """The module of each name that the source of `package` imports for type checkers only."""
    spec = find_spec(package)
    source = getattr(spec.loader, "get_source", None) if spec is not None else None
    assert source is not None, f"{package} has no source"
    tree = cast(ast.Module, ast.parse(source(package)))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name: node.module or "" for node in imports for name in node.names}
