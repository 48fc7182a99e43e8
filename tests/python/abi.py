"""Compares worker/python/zenps/_abi.py with the public headers. Arguments: folder of the package, folder of the headers,
scratch folder; environment: CC. TAP.

A C program prints the values of constants, and sizes and offsets of structures, as the compiler has them; names, members
and prototypes are read from the text of the headers, so that what _abi.py lacks is seen, too.
"""

import ctypes
import importlib.util
import os
import re
import shlex
import subprocess
import sys

package, headers, scratch = sys.argv[1:4]
spec = importlib.util.spec_from_file_location("_abi", os.path.join(package, "_abi.py"))
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)

text = ""
for name in ("zenps.h", "elastic.h", "sparsify.h"):
    with open(os.path.join(headers, name), encoding="utf-8") as header:
        text += header.read()
text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
text = re.sub(r"^ *#.*?(?<!\\)$", "", text, flags=re.M | re.S)
failed = 0
n_tests = 0


def test(name, problems):
    global failed, n_tests
    n_tests += 1
    failed += bool(problems)
    print(("not ok" if problems else "ok") + f" {n_tests} - {name}")
    for problem in problems:
        print("#   " + problem)


# ---------------------------------------------------------------- names

enums = {
    tag: re.findall(r"\b(ZENPS_\w+)\b", body) for tag, body in re.findall(r"typedef enum (\w+) \{(.*?)\}", text, re.S)
}
structs = {}
for tag, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", text, re.S):
    structs[tag] = [
        re.findall(r"(\w+)(?:\[\w+\])?\s*$", part)[0]
        for declaration in body.split(";")
        if declaration.strip()
        for part in declaration.split(",")
    ]
OPAQUE = {"zenps_job_t", "zenps_tensor_t", "zenps_request_t", "zenps_sparsifier_t", "zenps_group_t"}
SCALARS = {
    "void": None, "bool": "c_bool", "int": "c_int", "double": "c_double", "size_t": "c_size_t", "uint64_t": "c_uint64",
    "int64_t": "c_int64", "uint32_t": "c_uint32", "zenps_log_fn": "LogFn",
}  # fmt: skip
SCALARS.update({tag + "_t": "c_int" for tag in enums})


def python_type(c_type):
    """How _abi.py writes a C type."""
    words = c_type.replace("*", " * ").split()
    stars = words.count("*")
    (base,) = [word for word in words if word not in ("const", "*")]
    if base in OPAQUE or base == "void":
        return "None" if not stars else "c_void_p" if stars == 1 else "POINTER(c_void_p)"
    if base == "char" and stars == 1:
        return "c_char_p"
    if base.endswith("_t") and base[:-2] in abi.STRUCTS:
        return "POINTER(" * stars + abi.STRUCTS[base[:-2]].__name__ + ")" * stars
    if base in SCALARS:
        return SCALARS[base] if not stars else f"POINTER({SCALARS[base]})"
    return f"<{c_type}>"


def split_parameter(parameter):
    found = re.match(r"(.*?[\s*])(\w+)$", parameter.strip())
    return (found.group(1), found.group(2)) if found else (parameter, "")


functions = {}
for result, name, parameters in re.findall(r"ZENPS_API ([\w\s*]+?)(\bzenps_\w+)\(([^)]*)\);", text):
    parameters = [] if parameters.strip() == "void" else parameters.split(",")
    arguments = [python_type(split_parameter(each)[0]) for each in parameters]
    functions[name] = (python_type(result), arguments)


def written(kind):
    if kind is None:
        return "None"
    if kind is abi.LogFn:
        return "LogFn"
    if isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
        return f"POINTER({written(kind._type_)})"
    names = ("c_void_p", "c_char_p", "c_bool", "c_int", "c_uint32", "c_uint64", "c_int64", "c_size_t", "c_double")
    return next((name for name in names if getattr(ctypes, name) is kind), kind.__name__)


def same(ours, theirs):
    """c_uint64 and c_size_t are one type. An array of numbers may be c_void_p."""
    ours, theirs = (each.replace("c_size_t", "c_ulong").replace("c_uint64", "c_ulong") for each in (ours, theirs))
    arrays = ("POINTER(c_int64)", "POINTER(c_double)", "POINTER(c_uint32)", "POINTER(c_ulong)", "POINTER(c_void_p)")
    return ours == theirs or (ours == "c_void_p" and theirs in arrays)


problems = []
for name, (result, arguments) in functions.items():
    line = f'"{name}": ({result}, [{", ".join(arguments)}]),'
    if name not in abi.FUNCTIONS:
        problems.append(f"{name}() is missing; FUNCTIONS wants    {line}")
        continue
    ours = [written(each) for each in (abi.FUNCTIONS[name][0], *abi.FUNCTIONS[name][1])]
    theirs = [result, *arguments]
    if len(ours) != len(theirs) or not all(map(same, ours, theirs)):
        problems.append(f"{name}() has {ours}; the header has    {line}")
problems += [f"{name}() is in no header" for name in abi.FUNCTIONS if name not in functions]
test(f"_abi.py has the {len(functions)} functions of the headers, with their types", problems)

problems = []
for tag, constants in enums.items():
    if tag not in abi.ENUMS:
        problems.append(f"enum {tag} is missing")
        continue
    kind, prefix = abi.ENUMS[tag]
    ours = {prefix + constant for constant in kind.__members__}
    problems += [f"enum {tag}: {kind.__name__} lacks {name}" for name in constants if name not in ours]
problems += [f"enum {tag} is in no header" for tag in abi.ENUMS if tag not in enums]
test(f"_abi.py has the {len(enums)} enums of the headers, and their constants", problems)

problems = []
for tag, members in structs.items():
    if tag not in abi.STRUCTS:
        problems.append(f"struct {tag} is missing")
        continue
    ours = [field[0] for field in abi.STRUCTS[tag]._fields_]
    if ours != members:
        problems.append(f"struct {tag} has {ours}; the header has {members}")
problems += [f"struct {tag} is in no header" for tag in abi.STRUCTS if tag not in structs]
test(f"_abi.py has the {len(structs)} structures of the headers, and their members", problems)

# ---------------------------------------------------------------- what the compiler makes of them

expected = {}
lines = ['#include <stdio.h>', "#include <stddef.h>", "#include <zenps/elastic.h>", "#include <zenps/sparsify.h>", "int main(void)", "{"]


def ask(what, value):
    expected[what] = value
    lines.append(f'  printf("%s %lld\\n", "{what}", (long long)({what.replace("#", ",")}));')


for number, part in zip(abi.VERSION, ("MAJOR", "MINOR", "PATCH")):
    ask(f"ZENPS_VERSION_{part}", number)
for tag, (kind, prefix) in abi.ENUMS.items():
    for constant in kind:
        if prefix + constant.name in enums.get(tag, ()):
            ask(prefix + constant.name, int(constant))
for tag, kind in abi.STRUCTS.items():
    if tag not in structs:
        continue
    ask(f"sizeof(struct {tag})", ctypes.sizeof(kind))
    for field in kind._fields_:
        if field[0] in structs[tag]:
            member = getattr(kind, field[0])
            ask(f"offsetof(struct {tag}#{field[0]})", member.offset)
            ask(f"sizeof(((struct {tag} *)0)->{field[0]})", member.size)
lines += ["  return 0;", "}", ""]
source, program = os.path.join(scratch, "abi.c"), os.path.join(scratch, "abi")
with open(source, "w", encoding="utf-8") as file:
    file.write("\n".join(lines))
compiler = shlex.split(os.environ.get("CC", "cc"))
subprocess.run([*compiler, "-I", os.path.dirname(os.path.abspath(headers)), "-o", program, source], check=True)
output = subprocess.run([program], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
found = {what: int(value) for what, _, value in (line.rpartition(" ") for line in output.splitlines())}
test(
    f"{len(expected)} constants, sizes and offsets are those of the compiler",
    [f"{what} is {found.get(what)}; _abi.py has {value}" for what, value in expected.items() if found.get(what) != value],
)
print(f"1..{n_tests}")
sys.exit(bool(failed))
