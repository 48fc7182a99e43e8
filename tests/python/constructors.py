"""Calls in zenps.torch that make tensors of the program's default dtype, or on its default device: each must name both. Argument:
the folder of the package. One line for each call that does not, and exit status 1."""

import ast
import pathlib
import sys

OF_VALUES = {"sparse_coo_tensor", "sparse_csr_tensor", "sparse_compressed_tensor", "asarray", "as_tensor"}  # their dtype is the values'
MAKERS = OF_VALUES | {"arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "randint",
                      "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"}  # fmt: skip


def missing(call):
    """The arguments that a call lacks."""
    function = call.func
    is_maker = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "torch"
    if not is_maker or function.attr not in MAKERS:
        return []
    given = {keyword.arg for keyword in call.keywords}
    return [each for each in ("dtype", "device") if each not in given and not (each == "dtype" and function.attr in OF_VALUES)]


def main():
    found = 0
    for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            lacks = missing(node) if isinstance(node, ast.Call) else []
            if lacks:
                found += 1
                print(f"{path}:{node.lineno}: torch.{node.func.attr}() without {' and '.join(lacks)}=")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
